// Attention of a few new positions of each row to keys and values in pages, which take the new ones first.
//
// OpenMP's symbols are left open and resolved to the library that torch has loaded.

#include "attend.h"

// Numbers of rows, heads and positions, whose features lie side by side.
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

static void attend_group(const Job &job, long row, long group, std::vector<float> &queries, std::vector<float> &scores) {
    const long width = job.how.key_width, value_width = job.how.value_width, slots = group * job.size;
    const long share = job.heads / job.kv_heads, past = job.past[row], after = job.after[row];
    const long values_at = job.kv_heads * job.size * width + slots * value_width;
    const Held held{nullptr, nullptr, job.pages + row * job.row_pages, job.size, slots * width, values_at};
    for (long n = 0; n < after - past; n++) {
        std::memcpy(held.key(past + n, width), job.k.at(row, group, n), width * sizeof(float));
        std::memcpy(held.value(past + n, value_width), job.v.at(row, group, n), value_width * sizeof(float));
    }
    queries.resize(share * job.count * width);
    for (long i = 0; i < share * job.count; i++)
        std::memcpy(queries.data() + i * width, job.q.at(row, group * share + i / job.count, i % job.count),
                    width * sizeof(float));
    float *const out = job.y + (row * job.count * job.heads + group * share) * value_width;
    attend(job.how, held,
           {queries.data(), share, job.count, group * share, past, after, out, value_width, job.heads * value_width},
           scores);
}

// strides: of row, head and position of q, k and v. y is zeros; outputs of positions that a row lacks mean nothing.
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
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        std::vector<float> queries, scores;
#pragma omp for schedule(dynamic, 1)
        for (long i = 0; i < rows * kv_heads; i++)
            if (after[i / kv_heads]) attend_group(job, i / kv_heads, i % kv_heads, queries, scores);
    }
}
