"""Limits in which a branch is something known, and the tests that show them; or the reason why there is none.

The test is a file below ``tests`` and the name of a function in it. ``docs/making/contracts.py`` makes a table of them.
"""

from __future__ import annotations

from typing import NamedTuple


class Limit(NamedTuple):
    """What a branch equals in a limit, and the test of it; without a test, the reason why there is no limit."""

    what: str
    test: str = ""


LIMITS: dict[str, Limit] = {
    "additive_attention": Limit(
        "blocks of any size: the whole at once",
        "mixers/test_memory_branches.py::test_additive_attention_in_blocks_gives_the_same",
    ),
    "attention": Limit(
        "torch's multi-head attention",
        "mixers/test_attention.py::test_it_equals_torch_s_multi_head_attention_with_gradients",
    ),
    "causal_convolution": Limit(
        "torch's convolution", "ops/test_convolution.py::test_the_product_equals_torch_s_convolution"
    ),
    "collision_attention": Limit(
        "equal queries and keys: the direction of the sum of the values",
        "mixers/test_attention.py::test_equal_queries_and_keys_collide_with_certainty",
    ),
    "continuous_memory": Limit(
        "a row of one segment: window attention",
        "mixers/test_continuous_memory.py::test_rows_of_one_segment_are_window_attention",
    ),
    "conformer_convolution": Limit(
        "the Conformer's convolution of the transformers library",
        "mixers/test_conformer.py::test_it_is_the_convolution_of_the_other_library",
    ),
    "convolved_feed_forward": Limit(
        "a kernel that is 1 in its middle and 0 beside: a feed-forward network",
        "mixers/test_grids.py::test_a_kernel_of_its_middle_alone_is_a_feed_forward_network",
    ),
    "convolution": Limit(
        "torch's convolution of each document",
        "ops/test_convolution.py::test_two_sided_taps_equal_torch_s_convolution_of_each_document",
    ),
    "cross_attention": Limit(
        "weights that can be seen make the output",
        "mixers/test_memory_branches.py::test_the_weights_are_those_that_the_output_is_made_of",
    ),
    "disentangled_attention": Limit(
        "a table of zeros: attention by content",
        "mixers/test_disentangled_attention.py::test_it_is_attention_by_content_where_the_table_and_its_biases_are_zero",
    ),
    "feed_forward": Limit(
        "two convolutions of width one",
        "layers/test_feed_forward.py::test_feed_forward_equals_two_convolutions_of_width_one",
    ),
    "fixed_context": Limit("no limit: one pooled vector for all positions"),
    "focal_modulation": Limit(
        "gates of 0: a linear map of a linear map, of each position alone",
        "mixers/test_grids.py::test_without_gates_focal_modulation_is_position_wise",
    ),
    "fourier": Limit(
        "applied twice: the even part of the row", "mixers/test_position_matrices.py::test_two_transforms_reverse_a_row"
    ),
    "gated_convolution": Limit(
        "torch's grouped convolution between two products",
        "mixers/test_gated_convolution.py::test_it_equals_torch_s_grouped_convolution_between_two_products",
    ),
    "gated_delta": Limit(
        "strength 1 and unit keys: the value of a key is replaced",
        "ops/test_matrix_state.py::test_the_delta_rule_replaces_the_value_of_a_key",
    ),
    "gated_feed_forward": Limit("no limit: a product of two maps"),
    "gau": Limit(
        "equal scores: the mean of the values seen",
        "mixers/test_gated_attention.py::test_equal_scores_give_the_mean_of_the_values_seen",
    ),
    "gin": Limit(
        "a product with the adjacency matrix, before an MLP",
        "mixers/test_graph_mixers.py::test_sums_are_a_product_with_the_adjacency_matrix",
    ),
    "global_attention": Limit("no limit: a sum over the graph"),
    "global_local_attention": Limit(
        "attention under its mask",
        "mixers/test_global_local_attention.py::test_the_blocks_are_dense_attention_under_the_mask",
    ),
    "gmlp": Limit(
        "a lower triangular matrix: its causal form",
        "mixers/test_position_matrices.py::test_a_causal_form_is_the_full_one_with_a_lower_triangular_matrix",
    ),
    "graph_attention": Limit(
        "attention to visible neighbours",
        "mixers/test_graph_mixers.py::test_attention_over_edges_is_attention_to_visible_neighbours",
    ),
    "gru": Limit("torch's GRU", "mixers/test_recurrent.py::test_padded_rows_equal_torch_s_packed_ones_with_gradients"),
    "hyper_attention": Limit(
        "one block, or all columns sampled: exact attention",
        "mixers/test_hyper_attention.py::test_limits_are_exact_attention",
    ),
    "latent_attention": Limit(
        "no compression, no rotation: multi-head attention",
        "mixers/test_latent_attention.py::test_without_compression_and_rotation_it_is_multi_head_attention",
    ),
    "linear_attention": Limit(
        "many random features: softmax attention, error ∝ 1/√features",
        "mixers/test_linear_attention.py::test_the_error_falls_with_the_root_of_the_number_of_features",
    ),
    "linformer": Limit(
        "as many keys as positions: exact attention",
        "mixers/test_linformer.py::test_as_many_keys_as_positions_and_identities_are_full_attention",
    ),
    "lsh_attention": Limit(
        "one chunk: exact attention",
        "mixers/test_lsh_attention.py::test_a_row_of_one_chunk_is_not_hashed_also_beside_longer_ones",
    ),
    "lstm": Limit(
        "torch's LSTM", "mixers/test_recurrent.py::test_padded_rows_equal_torch_s_packed_ones_with_gradients"
    ),
    "differential_attention": Limit(
        "a factor of zero: attention of half of the heads, and a norm",
        "mixers/test_differential_attention.py::"
        "test_a_factor_of_zero_is_attention_of_the_first_half_of_the_heads_and_a_norm",
    ),
    "rg_lru": Limit("no decay: a sum", "ops/test_gated_scan.py::test_without_decay_it_sums"),
    "mamba": Limit(
        "equal rates and steps: the state of Mamba-2",
        "ops/test_selective.py::test_equal_rates_and_steps_give_the_state_of_mamba_2",
    ),
    "mamba2": Limit(
        "no decay: the sum of outer products",
        "ops/test_matrix_state.py::test_without_decay_the_state_sums_outer_products",
    ),
    "memory_layer": Limit(
        "no query map: a feed-forward network",
        "ops/test_memory_layer.py::test_without_a_query_map_an_activation_makes_it_a_feed_forward_net",
    ),
    "mixed_chunk_attention": Limit(
        "a chunk as long as the row: gau",
        "mixers/test_gated_attention.py::test_a_chunk_as_long_as_the_row_is_the_unit_alone",
    ),
    "mixture_of_experts": Limit(
        "one expert: a feed-forward network", "layers/test_experts.py::test_one_expert_is_a_feed_forward_network"
    ),
    "monet": Limit(
        "no shift: each position by itself", "mixers/test_neighbours.py::test_monet_without_a_shift_is_position_wise"
    ),
    "pooling": Limit("PoolFormer's pooling", "mixers/test_neighbours.py::test_pooling_on_a_grid_is_that_of_poolformer"),
    "product_key_memory": Limit(
        "the largest of all pairs of keys", "layers/test_product_keys.py::test_the_largest_are_those_of_all_pairs"
    ),
    "propagation": Limit(
        "a product with the normalised matrix",
        "mixers/test_graph_mixers.py::test_propagation_is_a_product_with_the_normalised_matrix",
    ),
    "random_mixing": Limit(
        "a lower triangular matrix: its causal form",
        "mixers/test_position_matrices.py::test_a_causal_form_is_the_full_one_with_a_lower_triangular_matrix",
    ),
    "reduced_attention": Limit(
        "blocks that hold equal vectors: attention to one of each",
        "mixers/test_grids.py::test_blocks_of_equal_vectors_are_read_as_one",
    ),
    "gated_bias_attention": Limit(
        "the published layer",
        "mixers/test_relative_attention.py::test_gated_biases_equal_those_of_the_published_layer",
    ),
    "relative_attention": Limit(
        "the published layer",
        "mixers/test_relative_attention.py::test_outputs_and_gradients_equal_those_of_the_published_layer",
    ),
    "retention": Limit(
        "no decay: the sum of outer products",
        "ops/test_matrix_state.py::test_without_decay_the_state_sums_outer_products",
    ),
    "retrieval_attention": Limit(
        "all keys retrieved: exact attention",
        "mixers/test_retrieval_attention.py::test_all_keys_retrieved_and_joined_by_their_weight_are_full_attention",
    ),
    "rnn": Limit("torch's RNN", "mixers/test_recurrent.py::test_padded_rows_equal_torch_s_packed_ones_with_gradients"),
    "spatial_shift": Limit("no limit: a permutation of features, see its equation"),
    "token_mlp": Limit("no limit: its matrix is any matrix of positions"),
    "token_shift": Limit("no limit: a mean of two neighbours"),
    "window_attention": Limit(
        "one window: attention with a bias per offset",
        "mixers/test_windows.py::test_one_window_is_attention_with_a_bias_per_offset",
    ),
}
