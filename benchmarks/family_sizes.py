"""Sizes of small checkpoints of published families: by key, by family, and further values of keys for variants.

``SMALL``: size of each key that every family has under this name. ``FAMILIES``: keys of a family that keep what is
special about it, such as layers of every type. ``CHOICES``: further values of keys, for variants; ``CHOICES_OF``: those
of one family.
"""

SIDE = 32
"""Pixels of a side of an image."""

SMALL = {name: size for size, names in {
    1: "n_shared_experts num_shared_experts topk_group first_k_dense_replace num_dense_layers",
    2: "encoder_layers decoder_layers num_encoder_layers num_decoder_layers num_key_value_heads num_kv_heads n_group "
       "num_experts_per_tok moe_topk moe_k top_k_experts num_experts_per_token linear_num_key_heads num_codebooks "
       "swa_num_key_value_heads num_conv_pos_embedding_groups num_quantizers n_codebooks resampler_depth "
       "mamba_n_groups speech_encoder_layers t2u_encoder_layers t2u_decoder_layers cross_num_key_value_heads",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads attention_heads "
       "num_encoder_attention_heads num_decoder_attention_heads num_experts n_routed_experts num_local_experts layers "
       "moe_num_experts num_hidden_layers n_layer n_layers num_layers depth swa_num_attention_heads index_n_heads "
       "linear_num_value_heads linear_num_heads mamba_n_heads mamba_num_heads n_mamba_heads num_self_attention_heads "
       "num_sliding_attention_heads num_cross_attention_heads cross_num_attention_heads encoder_num_hidden_layers "
       "decoder_num_hidden_layers encoder_num_attention_heads decoder_num_attention_heads num_query_tokens "
       "encoder_num_key_value_heads decoder_num_key_value_heads conf_num_attention_heads conf_num_hidden_layers "
       "speech_encoder_attention_heads t2u_encoder_attention_heads t2u_decoder_attention_heads num_global_layers",
    8: "qk_rope_head_dim sliding_window sliding_window_size attention_window attention_window_size time_step_rank "
       "mamba_dt_rank index_topk laurel_rank rotary_dim patch_size mm_tokens_per_image num_registers",
    16: "head_dim attention_head_dim kv_channels d_kv dim_head kv_lora_rank qk_nope_head_dim v_head_dim swa_head_dim "
        "global_head_dim index_head_dim state_size ssm_state_size mamba_d_state linear_key_head_dim linear_head_dim "
        "linear_value_head_dim chunk_size mamba_chunk_size hidden_size_per_layer_input num_mel_bins n_mel_bins d_head "
        "num_conv_pos_embeddings num_filters codebook_size codebook_dim cross_head_dim upsample_groups context_size "
        "attention_head_size vector_quantization_hidden_dimension feature_projection_input_dim input_feat_per_channel "
        "num_position_embeddings",
    24: "q_lora_rank projection_dim",
    32: "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size mamba_d_head mamba_head_dim "
        "image_size classifier_proj_size shared_experts_intermediate_size moe_shared_expert_intermediate_size "
        "max_source_positions conv_channels entity_emb_size unit_embed_dim lang_embed_dim spkr_embed_dim "
        "upsample_initial_channel",
    64: "hidden_size d_model n_embd dim embedding_size embed_dim word_embed_proj_dim emb_dim lru_width d_latents "
        "attention_hidden_size encoder_hidden_size decoder_hidden_size out_hidden_size text_hidden_size prompt_mid_dim "
        "hidden_size_global output_hidden_size vision_hidden_size cross_hidden_size input_embedding_size "
        "output_embedding_size shape_embed_dim pronunciation_embed_dim moe_hidden_size embedding_rank projection_size "
        "audio_hidden_size",
    96: "intermediate_size ffn_dim n_inner d_ff d_inner dff dim_ff hidden_dim ffn_hidden_size encoder_ffn_dim mlp_dim "
        "decoder_ffn_dim dense_intermediate_size intermediate_size_mlp shared_intermediate_size feed_forward_size "
        "decoder_intermediate_size speech_encoder_intermediate_size t2u_encoder_ffn_dim t2u_decoder_ffn_dim",
    128: "max_position_embeddings n_positions n_ctx max_seq_len seq_length context_length max_sequence_length "
         "original_max_position_embeddings max_encoder_position_embeddings max_decoder_position_embeddings max_pos_emb "
         "max_target_positions max_text_positions max_speech_positions t2u_max_position_embeddings",
    160: "vocab_size vocab_size_per_layer_input unpadded_vocab_size src_vocab_size tgt_vocab_size text_vocab_size "
         "decoder_vocab_size entity_vocab_size shape_vocab_size pronunciation_vocab_size t2u_vocab_size "
         "char_vocab_size unit_hifi_gan_vocab_size",
}.items() for name in names.split()} | {
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "sep_token_id": 2,
    "image_token_id": 150, "image_token_index": 150, "video_token_id": 151, "video_token_index": 151,
    "audio_token_id": 152, "audio_token_index": 152, "vision_start_token_id": 153, "vision_end_token_id": 154,
}  # fmt: skip

SLIDE, FULL, LINEAR, INDEXED = "sliding_attention", "full_attention", "linear_attention", "indexed_attention"
TWO_ROPES = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in ((SLIDE, 1e4), (FULL, 5e3))}
DECODER = {"model_type": "bert", "is_decoder": True, "add_cross_attention": True}
DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0,
           "max_relative_positions": 32, "position_biased_input": False}  # fmt: skip
MAMBA = {"mamba_d_head": 32, "mamba_n_heads": 4, "mamba_d_state": 16, "mamba_chunk_size": 8}
GROUPED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "n_shared_experts": 1}
SHARED = {"num_kv_shared_layers": 2, "layer_types": [SLIDE, FULL] * 2, "final_logit_softcapping": 5.0}
EXPERTS = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
NET = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "kernel_sizes": [3, 5, 3], "in_channels": [32, 16, 24],
       "out_channels": [16, 24, 32], "strides": [1, 2, 1], "num_block_repeats": [1, 2, 1], "expand_ratios": [1, 6, 6],
       "depthwise_padding": [], "hidden_dim": 1280}  # fmt: skip
SWIN = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "patch_size": 2}
STAGES = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 2, 1, 1], "patch_size": 4}
FAMILIES = {
    # decoders
    "bamba": {**MAMBA, "attn_layer_indices": [1, 3], "layers_block_type": None},
    "blt": {"encoder_hash_byte_group_size": [3, 4], "encoder_hash_byte_group_vocab": 200, "vocab_size": 260,
            "local_attention_window_len": 8, "num_hidden_layers": 4},
    "blt_patcher": {"vocab_size": 260}, "blt_local_encoder": {"vocab_size": 260},
    "blt_local_decoder": {"vocab_size": 260},
    "cohere_compass_text": {"layer_types": [SLIDE, SLIDE, FULL, FULL], "logit_scale": 0.5,
                            "rope_parameters": TWO_ROPES},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
             "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64}},
    "deepseek_v2": {**GROUPED, "topk_method": "group_limited_greedy"},
    "dots1": {**GROUPED, "max_window_layers": 2},
    "dots3_note_text": {"layer_types": [INDEXED, SLIDE] * 2, "sliding_window": 8, "per_layer_config": {
        layer: {"num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 16, "kv_lora_rank": 24,
                "head_dim": 24, "qk_nope_head_dim": 16, "v_head_dim": 16, "qk_rope_head_dim": 8} for layer in (1, 3)}},
    "gemma3n_text": {**SHARED, "num_hidden_layers": 6, "layer_types": [SLIDE, FULL] * 3, "intermediate_size": 96,
                     "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.0, 0.0]},
    "gemma4_assistant": {"backbone_hidden_size": 64, "text_config": {
        "model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0,
        "enable_moe_block": False, "use_double_wide_mlp": False, "num_kv_shared_layers": 4}},
    "gemma4_text": {**SHARED, **EXPERTS, "enable_moe_block": True, "use_double_wide_mlp": True},
    "gemma4_unified_text": SHARED,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 8},
    "granitemoehybrid": {**MAMBA, "layer_types": [LINEAR, FULL] * 2, "logits_scaling": 2.0, "attention_multiplier": 0.3,
                         "embedding_multiplier": 3.0, "residual_multiplier": 0.5},
    "hunyuan_v1_dense": {"head_dim": 16}, "hunyuan_vl_text": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16, "num_experts": 4, "moe_topk": 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "layer_types": None},
    "lfm2_moe": {"layer_types": ["conv", "conv", FULL, "conv"]},
    "longcat_flash": {"num_layers": 2, "head_dim": 8, "zero_expert_num": 2},
    "mamba2": {"head_dim": 32, "n_groups": 2},
    "ministral": {"head_dim": 16, "layer_types": [SLIDE, FULL] * 2},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {"n_groups": 2, "layers_block_type": [LINEAR, "moe", FULL, "moe", LINEAR, "mlp"]},
    "qwen4_exp_text": {"ple_layer_ids": [1], "ple_embed_dim": 64, "heads_per_ngram": 2, "ngram_vocab_size_base": 200,
                       "split_ngram_parts": 2, "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16,
                       "indexer_budget": 8, "indexer_compress_ratio": 4, "hc_lowrank": 16, "eos_token_id": 2},
    "reformer": {"attn_layers": ["local", "lsh"] * 2, "axial_pos_shape": [8, 16], "axial_pos_embds_dim": [16, 48],
                 "hash_seed": 0, "local_attn_chunk_length": 8, "lsh_attn_chunk_length": 8, "num_buckets": 4},
    "step3p5": {"sliding_window": 8, "num_sliding_attention_heads": 4, "share_expert_dim": 32},
    "xlstm": {"hidden_size": 128, "chunk_size": 8},
    "zamba": {"layers_block_type": [LINEAR, "hybrid"] * 2, "num_key_value_heads": 4},
    "zamba2": {"layers_block_type": [LINEAR, "hybrid"] * 2, "use_shared_attention_adapter": True, "adapter_rank": 8,
               "use_mem_rope": True, "num_key_value_heads": 4},
    "zaya": {"num_experts_per_tok": 1},
    # encoders and encoder–decoders of text
    "deberta": DEBERTA, "deberta-v2": {**DEBERTA, "position_buckets": 8, "norm_rel_ebd": "layer_norm",
                                       "share_att_key": True, "max_relative_positions": -1},
    "encoder-decoder": {"encoder": {"model_type": "bert"}, "decoder": DECODER},
    "esmc": {"num_key_value_heads": 4}, "esm": {"vocab_size": 160, "pad_token_id": 0, "mask_token_id": 3},
    "modernbert": {"local_attention": 8}, "modernbert-decoder": {"local_attention": 8},
    "perceiver": {"num_latents": 8, "d_latents": 32, "num_self_attends_per_block": 2, "qk_channels": 16,
                  "v_channels": 32},
    "xmod": {"languages": ["en_XX", "de_DE"], "default_language": "de_DE"},
    # images
    "align_vision_model": NET, "efficientnet": NET,
    "bit": {**STAGES, "embedding_size": 32, "num_groups": 4},
    "convnext": STAGES, "convnextv2": STAGES, "donut-swin": SWIN, "poolformer": STAGES, "resnet": STAGES,
    "regnet": {**STAGES, "groups_width": 8},
    "cvt": {"embed_dim": [16, 24, 32], "num_heads": [1, 3, 4], "depth": [1, 2, 3]},
    "focalnet": {**STAGES, "embed_dim": 16, "focal_levels": [2] * 4, "focal_windows": [3] * 4, "patch_size": 2},
    "hgnet_v2": {"stem_channels": [3, 8, 16], "stage_in_channels": [16, 24, 32, 48], "stage_mid_channels": [8] * 4,
                 "stage_out_channels": [24, 32, 48, 64], "hidden_sizes": [24, 32, 48, 64],
                 "stage_numb_of_layers": [2, 2, 2, 2], "stage_num_blocks": [1, 1, 2, 1]},
    "hiera": {"embed_dim": 16, "depths": [1, 1, 2, 1], "num_heads": [1, 2, 4, 8], "image_size": [64, 64]},
    "levit": {"hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 3, 4], "depths": [1, 2, 1], "patch_size": 16,
              "key_dim": [8, 8, 8], "image_size": 64},
    "mobilevitv2": {"patch_size": 2, "base_attn_unit_dims": [16, 24, 32], "n_attn_blocks": [1, 1, 1], "image_size": 64},
    "pvt": {**STAGES, "num_attention_heads": [1, 2, 3, 4], "num_labels": 2},
    "swin": SWIN, "swinv2": {**SWIN, "pretrained_window_sizes": [0, 0]},
    "textnet": {"hidden_sizes": [8, 16, 24, 32, 40], "stem_out_channels": 8, "image_size": [SIDE, SIDE]},
}  # fmt: skip
ATTENTION = {"falcon": "sdpa"}  # eager attention adds Falcon's ALiBi twice
UNCACHED = ("fsmt",)  # with a cache, its pass over whole rows has no causal mask
CONSTANT = ("inv_freq", "final_logits_bias", "inited", "initialized")  # buffers that no checkpoint has trained

OLD = {"rope_theta": 5000.0, "original_max_position_embeddings": 32}
CHOICES = {
    "rope_parameters": [
        {"rope_type": "default", "rope_theta": 5000.0},
        {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.5},
        {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
        {"rope_type": "dynamic", "rope_theta": 5000.0, "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, **OLD},
        {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "mscale": 0.7, "mscale_all_dim": 0.5, **OLD},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **OLD},
        {"rope_type": "longrope", "short_factor": [1.5] * 8, "long_factor": [3.0] * 8, "factor": 4.0, **OLD}],
    "head_dim": [8, 24], "d_kv": [8, 24], "num_key_value_heads": [1, 2, 4], "num_kv_heads": [1, 2, 4],
    "sliding_window": [3, 5, None], "attention_window": [4, 16], "local_attention": [6], "max_window_layers": [0, 1, 2],
    "global_attn_every_n_layers": [1, 2], "num_experts_per_tok": [1, 3], "first_k_dense_replace": [0, 2],
    "n_inner": [48], "ffn_hidden_size": [48], "expansion_ratio": [2], "num_hidden_layers": [3], "num_layers": [1],
    "num_decoder_layers": [1], "decoder_layers": [1], "relative_attention_num_buckets": [8],
    "type_vocab_size": [0, 1, 3], "relative_attention_max_distance": [20], "max_position_embeddings": [40],
    "query_pre_attn_scalar": [7, 64], "attn_logit_softcapping": [None, 5.0], "final_logit_softcapping": [None, 5.0],
    "logit_scale": [None, 0.5], "embedding_size": [48], "position_buckets": [-1, 4], "max_relative_positions": [16],
    "pos_att_type": [["c2p"], ["p2c"], ["c2p", "p2c"], []], "conv_kernel_size": [0, 3], "conv_act": ["tanh", "gelu"],
    "feed_forward_proj": ["relu", "gelu", "gated-gelu", "gated-silu", "gated-relu"], "hash_seed": [7],
    "norm_rel_ebd": ["none", "layer_norm"], "patch_size": [4, 16], "classifier_pooling": ["mean", "cls"],
    "attn_config": [{"alibi": False}, {"clip_qkv": 0.5}, {"alibi_bias_max": 4}, {"softmax_scale": 0.3},
                    {"qk_ln": True}],
    **{key: ["gelu", "relu", "silu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "tanh", "relu2"] for key in (
        "hidden_act", "hidden_activation", "activation_function", "activation", "dense_act_fn", "act_fn")},
}  # fmt: skip
EXPERTS_OF_DBRX = {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64}
CHOICES_OF = {
    # its base of rotations stands twice in a config, and libraries read it in either place
    "dbrx": {
        "attn_config": [{"kv_n_heads": heads, "clip_qkv": clip, "rope_theta": 10000.0}
                        for heads, clip in ((1, 0.5), (4, 8.0), (2, None))],
        "ffn_config": [{**EXPERTS_OF_DBRX, "moe_top_k": 3},
                       {**EXPERTS_OF_DBRX, "moe_normalize_expert_weights": None},
                       {**EXPERTS_OF_DBRX, "ffn_act_fn": {"name": "gelu"}}],
        "rope_parameters": [{**rope, "rope_theta": 10000.0} for rope in CHOICES["rope_parameters"]],
    },
}  # fmt: skip
"""Values of keys of one family, whose keys of these names hold something else than in others."""
NEUTRAL = ("use_cache", "return_dict", "is_decoder", "is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder",
           "drop", "init", "coef", "loss", "output_", "mask_", "jitter", "feed_forward_chunk", "_kernels")  # fmt: skip

METADATA = {
    "unsloth_version": "2025.3.1", "unsloth_fixed": True, "is_llama_config": True, "rope_interleaved": False,
    "transformers.js_config": {"dtype": "q4"}, "model_max_length": 2048, "_attn_implementation_autoset": True,
    "max_sequence_length": 2048, "quantization_config": None, "tokenizer_class": "PreTrainedTokenizerFast",
    "_name_or_path": "owner/name", "torch_dtype": "float32", "transformers_version": "4.40.0", "use_cache": False,
    "pretraining_tp": 1, "gradient_checkpointing": False, "task_specific_params": None, "finetuning_task": None,
}  # fmt: skip
"""Keys of real config.json files that change nothing: the library ignores what it does not know."""
