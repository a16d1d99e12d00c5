"""Keys of config.json that change nothing that a network computes, in any of the families.

They were looked up in the code of `transformers` and of earlier versions of it: what is here is
read for training, for generating text, for labels and files, or by no one.
"""

_TRAINING = """
    attention_dropout attention_probs_dropout_prob attn_pdrop classifier_dropout
    classifier_dropout_prob drop_path_rate dropout embd_pdrop hidden_dropout hidden_dropout_prob
    resid_pdrop summary_first_dropout summary_last_dropout
    gradient_checkpointing initializer_factor initializer_range problem_type
"""
#: What is drawn from the outputs, and the tokens at which that begins and ends.
_GENERATION = """
    bad_words_ids begin_suppress_tokens bos_token_id cls_token_id decoder_start_token_id
    diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size eos_token_id
    exponential_decay_length_penalty forced_bos_token_id forced_decoder_ids forced_eos_token_id
    length_penalty mask_token_id max_length max_new_tokens min_length no_repeat_ngram_size
    num_beam_groups num_beams num_return_sequences output_scores remove_invalid_values
    repetition_penalty return_dict_in_generate sep_token_id suppress_tokens temperature top_k top_p
    typical_p unk_token_id use_cache
"""
_OUTPUT = """
    output_attentions output_hidden_states output_past return_dict tie_last_hidden_states
    torchscript use_return_dict
"""
_LABELS = "_num_labels finetuning_task id2label label2id num_labels task_specific_params"
#: Where it comes from and with what it is run; the stored numbers count in the dtype they have.
_FILE = """
    _attn_implementation_autoset _commit_hash _model_name_or_path _name_or_path dtype name_or_path
    prefix tokenizer_class torch_dtype transformers.js_config transformers_version
    unsloth_fixed unsloth_version use_bfloat16 xla_device
"""
#: The same sums in another order; layers of an encoder beside a decoder, which none of ours has.
_SAME = """
    chunk_size_feed_forward cross_attention_hidden_size tf_legacy_loss tie_encoder_decoder
"""
#: These are read, but not as settings: `architectures` says which heads there are, `model_type`
#: which of these tables counts, and `auto_map` is refused unless the user says the model_type.
_ELSEWHERE = "architectures auto_map model_type"

HARMLESS = frozenset(
    " ".join(
        (_TRAINING, _GENERATION, _OUTPUT, _LABELS, _FILE, _SAME, _ELSEWHERE),
    ).split()
)
