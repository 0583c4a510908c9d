// Attention of a few new positions of each row to a paged KV cache; new keys and values are first stored in the pages.
//
// OpenMP is not linked: its symbols resolve to the OpenMP library that torch has loaded.

#include "attend.h"

// Tensor (rows, heads, positions, features) with contiguous features.
struct Rows {
    const float *data;
    long row, head, position;  // strides
    const float *at(long r, long h, long n) const { return data + r * row + h * head + n * position; }
};

struct Job {
    Scoring how;
    Rows q, k, v;
    float *y;              // (rows, count, heads, value width)
    float *const *pages;   // (rows, row_pages): keys (key heads, size, key width), then values
    long row_pages, size;
    const long *past, *after;  // positions of each row before and after the call
    long heads, kv_heads, count;
};

// Store and attend for one row and ``groups`` key heads, from ``group`` on.
static void attend_groups(const Job &job, long row, long group, long groups, std::vector<float> &q,
                          std::vector<float> &scores) {
    const long width = job.how.key_width, value_width = job.how.value_width, past = job.past[row], after = job.after[row];
    const long share = job.heads / job.kv_heads, heads = groups * share, first = group * share;
    const long to_key = job.size * width, to_value = job.size * value_width;
    const Held held{nullptr, nullptr, job.pages + row * job.row_pages, job.size, group * to_key,
                    job.kv_heads * to_key + group * to_value, to_key, to_value};
    for (long n = 0; n < after - past; n++)
        for (long g = 0; g < groups; g++) {
            float *const key = held.key(past + n, width) + g * to_key;
            float *const value = held.value(past + n, value_width) + g * to_value;
            std::memcpy(key, job.k.at(row, group + g, n), width * sizeof *key);
            std::memcpy(value, job.v.at(row, group + g, n), value_width * sizeof *value);
        }
    q.resize(heads * job.count * width);
    for (long i = 0; i < heads * job.count; i++)
        std::memcpy(q.data() + i * width, job.q.at(row, first + i / job.count, i % job.count), width * sizeof(float));
    float *const out = job.y + (row * job.count * job.heads + first) * value_width;
    attend(job.how, held,
           {q.data(), heads, share, job.count, first, past, after, out, value_width, job.heads * value_width}, scores);
}

// strides: of row, head and position of q, k and v. y is initialised to 0; outputs after a row's last
// new position are undefined.
extern "C" __attribute__((visibility("default"))) void
qkv_pages(const float *q, const float *k, const float *v, float *y, const long *strides, float *const *pages,
          long row_pages, long size, const long *past, const long *after, long rows, long heads, long kv_heads,
          long count, long width, long value_width, float scale, float cap, const float *slopes, const float *sink,
          int threads) {
    const auto of = [&](const float *data, int i) {
        return Rows{data, strides[3 * i], strides[3 * i + 1], strides[3 * i + 2]};
    };
    const Job job{{width, value_width, scale, cap, slopes, sink}, of(q, 0), of(k, 1), of(v, 2), y, pages, row_pages,
                  size, past, after, heads, kv_heads, count};
    const long parts = std::min(kv_heads, (threads + rows - 1) / rows);  // number of parts of each row's heads
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        std::vector<float> queries, scores;
#pragma omp for schedule(dynamic, 1)
        for (long i = 0; i < rows * parts; i++) {
            const long row = i / parts, part = i % parts, first = kv_heads * part / parts;
            if (after[row])
                attend_groups(job, row, first, kv_heads * (part + 1) / parts - first, queries, scores);
        }
    }
}
