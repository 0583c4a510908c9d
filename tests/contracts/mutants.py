"""Named faults. Each is put into the package for the length of a ``with`` block, and the battery must then fail.

A fault that no check notices would mean that the battery does not say what it seems to say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple
from unittest.mock import patch

import torch
from tests.contracts.faults import (
    Fault,
    all_empty,
    all_kept,
    all_real,
    argument,
    arrived_late,
    averages_averaged,
    capacity_dropped,
    clipped_early,
    documents_run_on,
    equal_shares,
    first_stream_alone,
    forgetful,
    from_zero,
    gates_swapped,
    grown_by_one,
    grown_empty,
    grown_uninitialised,
    in_sequence,
    instead,
    keys_from_zero,
    last_key_lost,
    mask_changed,
    mean_of_all,
    memories_cut,
    memory_lost,
    memory_of,
    narrower,
    not_copied,
    not_forgotten,
    not_normed,
    nothing,
    of_the_second_half,
    one_head,
    one_later,
    one_leaf_forgotten,
    one_nearer,
    one_position_late,
    padding_counted,
    position_one_late,
    prefix_seen,
    problem,
    relative_rotation,
    result,
    same_for_all,
    saved_exchanged,
    shifted_only,
    strictly_before,
    tail_one_early,
    unpadded,
    unwritten,
    update_inverted,
    whole_memory,
    wider,
    window_wider_in_mask_and_ring,
    without_cap,
    without_lengths,
    without_scale,
    without_segments,
    without_sinks,
    without_top_k,
)

from qkv.frontends import frontend, text
from qkv.layers import relative, residuals
from qkv.layers.position_wise import experts, feed_forward, memory_layer, product_keys
from qkv.mixers import recurrent
from qkv.mixers.attention import (
    additive_attention,
    attention,
    cross_attention,
    fixed_context,
    gated_attention,
    latent_attention,
    mixed_chunks,
    shaped,
)
from qkv.mixers.linear import feature_maps, gated_delta, linear_attention, mamba2, retention, short_convolution
from qkv.mixers.local import convolution, neighbours, position_matrices, token_shift
from qkv.mixers.sparse import continuous_memory, linformer, lsh_attention, retrieval_attention
from qkv.models import block, transformer
from qkv.models.stack import depth_average, megabyte, recurrent_memory, scales, segmentation
from qkv.ops import masks, positions
from qkv.ops.attention.twins import sink, top_k
from qkv.ops.gated_attention import mixed_chunks as mixed_ops
from qkv.ops.gated_attention import squared_relu
from qkv.ops.linear_attention import chunked
from qkv.ops.matrix_state import decayed, delta
from qkv.ops.sparse import continuous_memory as continuous_ops
from qkv.ops.sparse import hyper_attention as hyper_ops
from qkv.ops.sparse import lsh_attention as lsh_ops
from qkv.ops.sparse import neighbours as neighbour_ops
from qkv.spec import masks as mask_spec
from qkv.spec.branches import Exactness
from qkv.spec.mixers import hyper_attention as hyper_spec
from qkv.spec.mixers import lsh_attention as lsh_spec
from qkv.state import store, tree


class Mutant(NamedTuple):
    """A fault and the subjects that must notice it: kinds of branches, groups of samples, "stack" and "form" (all
    of them), or the name of one stack.
    """

    name: str
    subjects: tuple[str, ...]
    fault: Fault


ATTENTION, LSH, LEARNED, LINEAR, SHIFT, CONVOLUTION, RECURRENT, TWO_WAY, WHOLE, CROSS, ADDITIVE, FIXED, FORM, PREFIX = (
    ("attention",),
    ("lsh_attention",),
    ("learned distances",),
    ("linear_attention",),
    ("token_shift",),
    ("causal_convolution",),
    ("rnn", "gru", "lstm"),
    ("bidirectional",),
    ("whole rows",),
    ("cross_attention",),
    ("additive_attention",),
    ("fixed_context",),
    ("form",),
    ("prefix",),
)
LATENT = ("latent_attention",)
RETENTION, MAMBA, DELTA = ("retention",), ("mamba2",), ("gated_delta",)
GATED, MIXED = ("gau",), ("mixed_chunk_attention",)
MEMORY, PATCHES, RETRIEVED = ("recurrent_memory",), ("megabyte",), ("retrieval_attention",)
SCALES = ("scales",)
CONTINUOUS = ("continuous_memory",)
CAUSAL, SHIFTED, HYPER = ("gmlp",), ("spatial_shift", "monet"), ("hyper_attention",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant("mask dropped", ATTENTION, mask_changed(lambda mask: mask_spec.Full())),
    Mutant("a position does not see itself", ATTENTION, instead(masks.Causal, "allowed", strictly_before)),
    Mutant("scale dropped", ATTENTION, problem(lambda p: replace(p, scale=1.0))),
    Mutant("scale by the model's width, not the head's", ATTENTION, problem(lambda p: replace(p, scale=0.25))),
    Mutant("sink left out", ATTENTION, problem(lambda p: replace(p, sink=None))),
    Mutant(
        "sink of another head",
        ATTENTION,
        problem(lambda p: p if p.sink is None else replace(p, sink=p.sink.roll(1))),
    ),
    Mutant("sink behind the mask", ATTENTION, instead(sink, "WithSink", lambda _: lambda mask: mask)),
    Mutant("mean of later values, too", ATTENTION, instead(shaped, "uniform", mean_of_all)),
    Mutant(
        "mean not subtracted",
        ATTENTION,
        result(shaped, "uniform", torch.zeros_like),
    ),
    Mutant("window one too wide", ATTENTION, mask_changed(wider)),
    Mutant("window one too wide in mask and state", ATTENTION, window_wider_in_mask_and_ring),
    Mutant("window one too narrow", ATTENTION, mask_changed(narrower)),
    Mutant("sinks dropped", ATTENTION, mask_changed(without_sinks)),
    Mutant("key and value not written", ATTENTION, instead(store.Dense, "_fill", forgetful)),
    Mutant(
        "key and value of rows of different lengths not written", ATTENTION, instead(store.Dense, "_write", forgetful)
    ),
    Mutant("ring not written", ATTENTION, instead(store.Ring, "_turn", forgetful)),
    Mutant("ring read one slot off", ATTENTION, result(store.Ring, "_slot_positions", lambda held: held.roll(1, 1))),
    Mutant("past off by one", ATTENTION, argument(store.Dense, "append", 3, one_later)),
    Mutant("lengths ignored in the ring", ATTENTION, argument(store.Ring, "_turn", 3, unpadded)),
    Mutant("grown buffer empty", ATTENTION, instead(store.Dense, "_grow", grown_empty)),
    Mutant("grown buffer not cleared", ATTENTION, instead(store.Dense, "_grow", grown_uninitialised)),
    Mutant("growth by one", ATTENTION, instead(store.Dense, "_grow", grown_by_one)),
    Mutant("joined batches lose room", ATTENTION, instead(store, "joined", memories_cut)),
    Mutant(
        "joined batches in the wrong order", ("attention", "gru"), instead(tree, "join", lambda f: lambda a, b: f(b, a))
    ),
    Mutant("RoPE by position in the call", ATTENTION, instead(relative.Rope, "rotation", relative_rotation)),
    Mutant(
        "RoPE turned for keys only",
        ATTENTION,
        instead(positions, "rotate", lambda f: lambda x, c, s: f(x, c, s) if x.shape[1] < 4 else x),
    ),
    Mutant(
        "RoPE pairs neighbours",
        ATTENTION,
        instead(positions, "rotation", lambda f: lambda p, θ, m=1.0: f(p, θ.flip(0), m)),
    ),
    Mutant("ALiBi rewards distance", ATTENTION, result(positions, "alibi_slopes", torch.neg)),
    Mutant("ALiBi heads reversed", ATTENTION, result(positions, "alibi_slopes", lambda m: m.flip(0))),
    Mutant("ALiBi in exact numbers", ATTENTION, instead(torch.Tensor, "bfloat16", lambda f: lambda x: x.double())),
    Mutant("rounded ALiBi not scaled", ATTENTION, argument(relative.Alibi, "bias", 3, lambda scale: 1.0)),
    Mutant(
        "K/V heads of the wrong group",
        ATTENTION,
        argument(attention, "attention", 1, lambda k: k.roll(1, 1)),
    ),
    Mutant("soft cap of the scores dropped", ATTENTION, problem(lambda p: replace(p, softcap=None))),
    Mutant(
        "soft cap of the scores twice as high",
        ATTENTION,
        problem(lambda p: replace(p, softcap=p.softcap and 2 * p.softcap)),
    ),
    Mutant("top k keeps one more", ("top k",), problem(lambda p: replace(p, top_k=p.top_k and p.top_k + 1))),
    Mutant(
        "top k by place in memory",
        ("top k",),
        instead(top_k, "largest", lambda _: lambda s, k, positions: s.topk(k).indices),
    ),
    Mutant("top k, the newest of equal ones", ("top k",), argument(top_k, "largest", 2, torch.neg)),
    Mutant("top k keeps all", ("top k",), problem(lambda p: replace(p, top_k=None))),
    Mutant(
        "distances turned round",
        LEARNED,
        instead(relative, "clipped_distances", lambda f: lambda i, j, reach: f(-i, -j, reach)),
    ),
    Mutant("distances clipped one too early", LEARNED, instead(relative, "clipped_distances", clipped_early)),
    Mutant("relative keys not scaled", LEARNED, argument(relative.Shaw, "bias", 3, lambda scale: 1.0)),
    Mutant("relative values dropped", LEARNED, result(relative.Shaw, "values", nothing)),
    Mutant("what is added dropped", LEARNED, problem(lambda p: replace(p, added=None))),
    Mutant(
        "buckets of two directions in causal attention",
        LEARNED,
        argument(relative, "distance_buckets", 3, lambda causal: False),
    ),
    Mutant("buckets of the distance ahead", LEARNED, argument(relative, "distance_buckets", 0, torch.neg)),
    Mutant("positions of keys counted from the window", LEARNED, instead(relative.T5Buckets, "bias", keys_from_zero)),
    Mutant("documents leak in attention", ATTENTION, without_segments(attention.Attention)),
    Mutant("state bytes without the values", ATTENTION, result(attention.Attention, "state_bytes", lambda n: n // 2)),
    Mutant("last key lost", LINEAR, instead(chunked, "decayed", last_key_lost)),
    Mutant("sums not carried over", LINEAR, argument(chunked, "decayed", 4, lambda s: None if s is None else 0 * s)),
    Mutant("feature map elu + 2", LINEAR, result(feature_maps, "feature", lambda x: x + 1)),
    Mutant("random features of one head for all", LINEAR, instead(feature_maps.Favor, "forward", one_head)),
    Mutant("lengths ignored in the sums", LINEAR, argument(chunked, "decayed", 5, nothing)),
    Mutant(
        "padding read in the sums of a row", WHOLE, argument(linear_attention.LinearAttention, "_whole", 2, nothing)
    ),
    Mutant("no decay: retention", RETENTION, argument(retention, "decayed", 3, nothing)),
    Mutant("no decay: Mamba-2", MAMBA, argument(mamba2, "decayed", 3, nothing)),
    Mutant("no decay: the delta rule", DELTA, argument(gated_delta, "delta", 4, nothing)),
    Mutant("no decay to the end of a chunk: retention", RETENTION + MAMBA, instead(decayed, "decays", not_forgotten)),
    Mutant("no decay to the end of a chunk: the delta rule", DELTA, instead(delta, "decays", not_forgotten)),
    Mutant("lengths ignored in the state: retention", RETENTION, argument(retention, "decayed", 5, nothing)),
    Mutant("lengths ignored in the state: Mamba-2", MAMBA, argument(mamba2, "decayed", 5, nothing)),
    Mutant("lengths ignored in the state: the delta rule", DELTA, argument(gated_delta, "delta", 6, nothing)),
    Mutant("documents leak: retention", RETENTION, without_segments(retention.Retention)),
    Mutant("documents leak: Mamba-2", MAMBA, without_segments(mamba2.Mamba2)),
    Mutant("documents leak: the delta rule", DELTA, without_segments(gated_delta.GatedDelta)),
    Mutant("documents leak in gated attention", GATED, without_segments(gated_attention.GAU)),
    Mutant("ReLU not squared", GATED, result(squared_relu, "squared_relu", torch.sqrt)),
    Mutant("ReLU not squared within chunks", MIXED, result(mixed_ops, "squared_relu", torch.sqrt)),
    Mutant(
        "no rotation in gated attention", (*GATED, *MIXED), instead(positions, "rotate", lambda _: lambda x, c, s: x)
    ),
    Mutant("documents leak in mixed chunks", MIXED, without_segments(mixed_chunks.MixedChunkAttention)),
    Mutant("sums of chunks not read", MIXED, argument(mixed_ops, "step", 3, torch.zeros_like)),
    Mutant("chunks begin anew at each call", MIXED, argument(mixed_ops, "step", 4, lambda slots: slots - slots[:, :1])),
    Mutant("chunk of another size while decoding", MIXED, argument(mixed_ops, "step", 6, lambda chunk: chunk + 1)),
    Mutant(
        "padding kept in the current chunk", MIXED, argument(mixed_chunks.MixedChunkAttention, "_step", 3, all_real)
    ),
    Mutant("padding counted in chunks", WHOLE, argument(mixed_chunks.MixedChunkAttention, "_whole", 2, nothing)),
    Mutant("full strength", DELTA, argument(gated_delta, "delta", 3, torch.ones_like)),
    Mutant("tail of the convolution shifted", MAMBA, instead(short_convolution, "extended", tail_one_early)),
    Mutant("lengths ignored in the convolution", DELTA, argument(short_convolution, "extended", 2, nothing)),
    Mutant("documents leak in the short convolution", MAMBA, instead(short_convolution, "same_document", same_for_all)),
    Mutant("documents leak in linear attention", LINEAR, without_segments(linear_attention.LinearAttention)),
    Mutant("convolution tail shifted", CONVOLUTION, instead(convolution, "extended", tail_one_early)),
    Mutant("lengths ignored in the tail", CONVOLUTION, argument(convolution, "extended", 2, nothing)),
    Mutant("dilation ignored", CONVOLUTION, argument(convolution, "taps", 2, lambda dilation: 1)),
    Mutant("taps in reverse", CONVOLUTION, result(convolution, "taps", lambda t: t.flip(-1))),
    Mutant("documents leak in the convolution", CONVOLUTION, argument(convolution, "taps", 3, nothing)),
    Mutant("shift tail shifted", SHIFT, instead(token_shift, "extended", tail_one_early)),
    Mutant("lengths ignored in the shift", SHIFT, argument(token_shift, "extended", 2, nothing)),
    Mutant("documents leak in the shift", SHIFT, without_segments(token_shift.TokenShift)),
    Mutant("recurrent gates swapped", ("gru", "lstm"), argument(recurrent, "recur", 3, gates_swapped)),
    Mutant("GRU update inverted", ("gru",), argument(recurrent, "recur", 3, update_inverted)),
    Mutant("the recurrence begins anew at each call", RECURRENT, argument(recurrent, "recur", 2, all_empty)),
    Mutant("LSTM cells begin anew at each call", ("lstm",), argument(recurrent, "recur", 2, memory_lost)),
    Mutant("documents leak in the recurrence", RECURRENT, argument(recurrent, "recur", 4, nothing)),
    Mutant("lengths ignored in the hidden state", RECURRENT, argument(recurrent, "recur", 5, nothing)),
    Mutant("convolution reads the padding", TWO_WAY, without_lengths(convolution.Convolution)),
    Mutant("documents leak in the two-sided convolution", TWO_WAY, argument(convolution, "taps", 3, nothing)),
    Mutant(
        "convolution off centre", TWO_WAY, argument(convolution.F, "pad", 1, lambda pad: (*pad[:2], pad[3], pad[2]))
    ),
    Mutant(
        "keys of another slot", ("memory_layer",), argument(memory_layer, "weights", 1, lambda keys: keys.roll(1, 1))
    ),
    Mutant(
        "memory's scale dropped",
        ("memory_layer",),
        argument(memory_layer, "weights", 0, lambda q: q * q.shape[-1] ** 0.5),
    ),
    Mutant(
        "experts of the position before",
        ("mixture_of_experts",),
        argument(experts, "mixed", 1, lambda chosen: chosen.roll(1, 0)),
    ),
    Mutant(
        "weights of the experts exchanged",
        ("mixture_of_experts",),
        argument(experts, "mixed", 2, lambda weights: weights.flip(1)),
    ),
    Mutant(
        "the last expert dropped",
        ("mixture_of_experts",),
        argument(experts, "mixed", 3, lambda found: [*found[:-1], lambda v: 0 * found[-1](v)]),
    ),
    Mutant(
        "weights of the experts not normalised",
        ("mixture_of_experts",),
        instead(
            experts.MixtureOfExperts,
            "_weights",
            lambda _: lambda self, logits, scores, chosen: scores.gather(-1, chosen),
        ),
    ),
    Mutant(
        "experts chosen from all groups",
        ("mixture_of_experts",),
        instead(experts, "within_groups", lambda _: lambda scores, groups, kept, best: scores),
    ),
    Mutant(
        "shared experts without their gate",
        ("mixture_of_experts",),
        instead(experts.MixtureOfExperts, "_gated", lambda _: lambda self, x, y: y),
    ),
    Mutant(
        "factors of a gated network without bound",
        ("gated_feed_forward",),
        instead(feed_forward, "bounded", lambda f: lambda phi, gate, up, limit, shift: f(phi, gate, up, None, shift)),
    ),
    Mutant(
        "latent keys not rotated",
        LATENT,
        instead(relative.Rope, "rotate", lambda f: lambda self, q, k, c: (f(self, q, k, c)[0], k)),
    ),
    Mutant(
        "absorbed keys of another head",
        LATENT,
        instead(
            latent_attention.LatentAttention,
            "_maps",
            lambda f: lambda self: (f(self)[0].roll(1, 0), f(self)[1]),
        ),
    ),
    Mutant(
        "absorbed queries of the next position",
        LATENT,
        instead(latent_attention, "_of_heads", one_position_late),
    ),
    Mutant(
        "scale without the rotated features",
        LATENT,
        result(latent_attention, "AttentionProblem", lambda p: replace(p, scale=1.2 * p.scale)),
    ),
    Mutant(
        "absorbed values upside down",
        LATENT,
        instead(
            latent_attention.LatentAttention,
            "_maps",
            lambda f: lambda self: (f(self)[0], f(self)[1].flip(-1)),
        ),
    ),
    Mutant(
        "halves of product keys exchanged",
        ("product_key_memory",),
        argument(product_keys, "largest", 1, lambda keys: keys.flip(1)),
    ),
    Mutant("value of the next key", ("product_key_memory",), argument(product_keys, "read", 2, lambda v: v.roll(1, 0))),
    Mutant("token MLP reads the padding", WHOLE, without_lengths(position_matrices.TokenMLP)),
    Mutant("documents leak in gMLP", WHOLE, without_segments(position_matrices.GMLP)),
    Mutant("later positions read in causal gMLP", CAUSAL, instead(torch.Tensor, "tril", lambda _: lambda x: x)),
    Mutant("documents leak in causal gMLP", CAUSAL, without_segments(position_matrices.GMLP)),
    Mutant(
        "row of the matrix one too late",
        CAUSAL,
        argument(position_matrices.TriangularMatrices, "along_rows", 2, arrived_late),
    ),
    Mutant("inputs of the matrix not written", CAUSAL, instead(store.Dense, "_fill", forgetful)),
    Mutant("shift tail shifted in causal forms", SHIFTED, instead(neighbours, "extended", tail_one_early)),
    Mutant("lengths ignored in causal shifts", SHIFTED, argument(neighbours, "extended", 2, nothing)),
    Mutant("documents leak in causal shifts", SHIFTED, instead(neighbours, "same_document", same_for_all)),
    Mutant(
        "matrix over positions upside down",
        WHOLE,
        argument(position_matrices, "over_positions", 1, lambda w: w.flip(0)),
    ),
    Mutant("Linformer reads the padding", WHOLE, without_lengths(linformer.Linformer)),
    Mutant("documents leak in Linformer", WHOLE, without_segments(linformer.Linformer)),
    Mutant(
        "mixtures of the next position",
        WHOLE,
        argument(linformer.Linformer, "_mixtures", 1, lambda weight: weight.roll(1, 1)),
    ),
    Mutant(
        "shift goes around the border",
        WHOLE,
        instead(neighbour_ops, "_neighbour", lambda _: lambda x, axis, back: x.roll(1 if back else -1, axis)),
    ),
    Mutant("shift reads the padding", WHOLE, argument(neighbours, "shifted", 3, nothing)),
    Mutant("windows count the padding", WHOLE, argument(neighbours, "window_mean", 4, nothing)),
    Mutant("backward from the end of the padding", TWO_WAY, argument(recurrent, "reversal", 1, nothing)),
    Mutant(
        "backward direction goes forward", TWO_WAY, result(recurrent, "reversal", lambda index: index.sort(1).values)
    ),
    Mutant("documents leak backward", TWO_WAY, argument(recurrent, "recur", 4, nothing)),
    Mutant("hashing calls itself exact", LSH, lambda: patch.object(lsh_spec.LSHAttention, "exactness", Exactness())),
    Mutant(
        "hashing calls longer rows exact", LSH, lambda: patch.object(lsh_spec.LSHAttention, "exactness", Exactness(8))
    ),
    Mutant("keys not of length 1", LSH, instead(lsh_attention, "_EPS", lambda _: 1.0)),
    Mutant("a position sees itself", LSH, instead(lsh_ops, "SELF", lambda _: 0.0)),
    Mutant("hashed by the key of another head", TWO_WAY, result(lsh_ops, "buckets", lambda found: found.roll(1, 1))),
    Mutant(
        "padding hashed with the rest",
        TWO_WAY,
        argument(lsh_ops, "_chunks", 1, lambda lengths: lengths * 0 + int(lengths.max())),
    ),
    Mutant("rounds weigh the same", TWO_WAY, result(lsh_ops, "_met", lambda met: (met[0], met[1] * 0))),
    Mutant(
        "documents hashed together",
        TWO_WAY,
        instead(lsh_attention, "documents", lambda f: lambda segments: f(segments * 0)),
    ),
    Mutant(
        "estimates call themselves exact",
        HYPER,
        lambda: patch.object(hyper_spec.HyperAttention, "exactness", Exactness()),
    ),
    Mutant("codes of another head", (*HYPER, *TWO_WAY), result(hyper_ops, "codes", lambda found: found.roll(1, 1))),
    Mutant(
        "samples without weights",
        (*HYPER, *TWO_WAY),
        result(hyper_ops, "_drawn", lambda found: (found[0], found[1].clamp(max=0))),
    ),
    Mutant(
        "sampled keys of another block left out", HYPER, argument(hyper_ops, "_sample_scores", 2, lambda o: o.flip(-1))
    ),
    Mutant("padding sorted with the rest", TWO_WAY, argument(hyper_ops, "_sorted", 1, nothing)),
    Mutant("padding sampled", TWO_WAY, argument(hyper_ops, "_drawn", 1, nothing)),
    Mutant("parts joined with equal shares", HYPER, instead(hyper_ops, "_joined", equal_shares)),
    Mutant("rows() forgets one leaf", (*ATTENTION, *LINEAR), instead(tree, "rows", one_leaf_forgotten)),
    Mutant("rows() shares memory", ATTENTION, instead(tree, "rows", not_copied)),
    Mutant("keys and values exchanged in the file", ATTENTION, instead(tree, "save", saved_exchanged)),
    Mutant("positions off by one", ("stack",), instead(frontend.Frontend, "_following", position_one_late)),
    Mutant("padding counted as positions", ("stack",), instead(transformer.Transformer, "_read", padding_counted)),
    Mutant(
        "positions do not restart in a document",
        ("plain",),
        instead(frontend, "_restarted", lambda _: documents_run_on),
    ),
    Mutant("fixed capacity not kept", ("plain",), result(transformer.Transformer, "init_state", capacity_dropped)),
    Mutant(
        "rewind does nothing",
        ("what can be rewound",),
        argument(transformer.Transformer, "rewind", 2, torch.zeros_like),
    ),
    Mutant(
        "norm after the branch where it belongs before",
        ("stack",),
        instead(block.PreNorm, "forward", lambda _: block.PostNorm.forward),
    ),
    Mutant(
        "sandwich without its second norm",
        ("sandwich, rms norm, layer scale",),
        instead(block.Sandwich, "added", lambda _: block.PreNorm.added),
    ),
    Mutant(
        "streams not exchanged",
        ("reversible",),
        result(residuals.Reversible, "joined", lambda x: torch.cat(x.chunk(2, -1)[::-1], -1)),
    ),
    Mutant(
        "the second stream empty at first", ("reversible",), instead(transformer.Stack, "_entering", first_stream_alone)
    ),
    Mutant(
        "what went in not recomputed",
        ("reversible",),
        instead(residuals.Reversible, "separated", lambda _: lambda self, x, y: x),
    ),
    Mutant(
        "average over the outputs in reverse",
        ("depth average",),
        argument(depth_average.DepthAverage, "forward", 1, lambda outputs: [*outputs[-2::-1], outputs[-1]]),
    ),
    Mutant(
        "averages instead of outputs averaged",
        ("depth average",),
        instead(depth_average.DepthAverage, "forward", averages_averaged),
    ),
    Mutant("residual dropped", ("stack",), instead(residuals.Residual, "joined", lambda _: lambda self, x, y: y)),
    Mutant(
        "parallel branches in sequence", ("parallel, gated residual",), instead(block.Block, "forward", in_sequence)
    ),
    Mutant("soft cap dropped", ("what can be rewound",), result(transformer, "build_head", without_cap)),
    Mutant("token vectors not scaled", ("plain",), instead(text.TextFrontend, "forward", without_scale)),
    Mutant(
        "lengths of the memory ignored in cross-attention",
        CROSS,
        instead(cross_attention.CrossAttention, "_sites", whole_memory),
    ),
    Mutant(
        "memory seen up to the query's own position", CROSS, instead(cross_attention, "Full", lambda _: masks.Causal)
    ),
    Mutant(
        "scale dropped in cross-attention",
        CROSS,
        result(cross_attention, "AttentionProblem", lambda p: replace(p, scale=1.0)),
    ),
    Mutant(
        "values of the next vector of the memory",
        CROSS,
        argument(cross_attention, "attend", 1, lambda qkv: (*qkv[:2], qkv[2].roll(1, 2))),
    ),
    Mutant(
        "memory's heads of the wrong group",
        CROSS,
        argument(cross_attention, "attend", 1, lambda qkv: (qkv[0], qkv[1].roll(1, 1), qkv[2])),
    ),
    Mutant(
        "lengths of the memory ignored in additive attention",
        ADDITIVE,
        argument(additive_attention, "additive_weights", 4, nothing),
    ),
    Mutant(
        "additive scores without the query",
        ADDITIVE,
        argument(additive_attention, "additive_weights", 0, torch.zeros_like),
    ),
    Mutant("lengths of the memory ignored in the fixed context", FIXED, argument(fixed_context, "pooled", 1, nothing)),
    Mutant(
        "fixed context of one vector less", FIXED, argument(fixed_context, "pooled", 1, lambda lengths: lengths - 1)
    ),
    Mutant("every layer reads the first layer's memory", FORM, memory_of(lambda i, count: 0)),
    Mutant("every layer reads the last layer's memory", FORM, memory_of(lambda i, count: count - 1)),
    Mutant("layers read the memory of the one before", FORM, memory_of(lambda i, count: max(i - 1, 0))),
    Mutant(
        "encoder reads its padding",
        FORM,
        argument(transformer.Encoder, "forward", 1, lambda signal: replace(signal, lengths=None)),
    ),
    Mutant("memory not normed", FORM, instead(transformer.Encoder, "forward", not_normed)),
    Mutant("prefix dropped", PREFIX, prefix_seen(lambda length, key: key < 0)),
    Mutant("prefix one too long", PREFIX, prefix_seen(lambda length, key: key <= length)),
    Mutant("prefix one too short", PREFIX, prefix_seen(lambda length, key: key < length - 1)),
    Mutant(
        "prefix forgotten where there is a state",
        PREFIX,
        result(frontend.Frontend, "_following", lambda c: replace(c, prefix=None)),
    ),
    Mutant("decoder sees later positions", (*FORM, *PREFIX), mask_changed(lambda mask: mask_spec.Full())),
    Mutant("the window is retrieved, too", RETRIEVED, instead(retrieval_attention, "Older", one_nearer)),
    Mutant("all older keys retrieved", RETRIEVED, argument(retrieval_attention, "attention", 3, without_top_k)),
    Mutant("gate the other way around", RETRIEVED, instead(torch.Tensor, "sigmoid", lambda f: lambda x: f(-x))),
    Mutant("older signal not contracted", CONTINUOUS, argument(continuous_ops, "contracted", 1, all_kept)),
    Mutant("deviations read as variances", CONTINUOUS, argument(continuous_ops, "expected", 1, torch.square)),
    Mutant(
        "segments begin anew at each call",
        CONTINUOUS,
        argument(continuous_memory.ContinuousMemory, "_step", 3, from_zero),
    ),
    Mutant(
        "padding taken into the memory", CONTINUOUS, argument(continuous_memory.ContinuousMemory, "_step", 3, all_real)
    ),
    Mutant(
        "documents share a memory",
        CONTINUOUS,
        argument(continuous_memory, "each_row", 1, lambda context: replace(context, segments=None)),
    ),
    Mutant("memory not carried", MEMORY, instead(recurrent_memory.RecurrentMemory, "_written", unwritten)),
    Mutant("all rows begin anew with one", MEMORY, instead(recurrent_memory, "rows", of_the_second_half)),
    Mutant("memory of the next row", MEMORY, argument(recurrent_memory, "Carried", 1, lambda m: m.roll(1, 0))),
    Mutant("memory written one early", MEMORY, result(recurrent_memory, "picked", lambda x: x.roll(1, 1))),
    Mutant("memory not read", MEMORY, argument(recurrent_memory.RecurrentMemory, "_inside", 2, torch.zeros_like)),
    Mutant("memory not counted", MEMORY, result(recurrent_memory.RecurrentMemory, "own_bytes", lambda n: 0)),
    Mutant(
        "memory carried over documents",
        MEMORY,
        instead(segmentation, "documents", lambda f: lambda segments: f(segments * 0)),
    ),
    Mutant("a patch reads itself", PATCHES, argument(megabyte.Megabyte, "_project_signal", 1, lambda h: h.roll(-1, 1))),
    Mutant(
        "positions of a patch turned around", PATCHES, result(megabyte.Megabyte, "_project_signal", lambda s: s.flip(2))
    ),
    Mutant("a patch begins with the last value", PATCHES, instead(megabyte.Megabyte, "_begun", shifted_only)),
    Mutant("values of the patch not kept", PATCHES, argument(megabyte, "PatchState", 3, torch.zeros_like)),
    Mutant("signal of the patch not kept", PATCHES, argument(megabyte, "PatchState", 2, torch.zeros_like)),
    Mutant("patches not counted", PATCHES, result(megabyte.Megabyte, "own_bytes", lambda n: n // 2)),
    Mutant("vectors of the window not kept", SCALES, argument(scales, "ScaleState", 1, torch.zeros_like)),
    Mutant("a window one position late", SCALES, result(scales.Scales, "_levels", lambda h: h.roll(1, 1))),
    Mutant("windows not counted", SCALES, result(scales.Scales, "own_bytes", lambda n: n // 2)),
    Mutant("every state may be rewound", ("pre",), lambda: patch.object(transformer.Transformer, "rewindable", True)),
)
