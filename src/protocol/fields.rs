//! Every request field and kind that the three model APIs define, and what becomes of it here.
//!
//! A path is a field, `[]` the elements of a list, `[type=x]` those of one kind: `tools[type=local_shell]`. What a path
//! says holds for all below it that has no entry of its own, unless it is [`Use::Honoured`].

/// A model API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/responses`.
    Responses,
    /// `POST /v1/messages`.
    Messages,
}

/// What becomes of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It does what the API says.
    Honoured,
    /// It is taken and changes nothing, for this reason.
    NoEffect(&'static str),
    /// Refused, for this reason, unless it has one of these JSON values, which ask for nothing. Null asks for nothing
    /// too.
    Only(&'static [&'static str], &'static str),
}
use Use::{Honoured, NoEffect, Only};

/// All model APIs.
pub const APIS: [Api; 3] = [Api::Chat, Api::Responses, Api::Messages];

/// A path and what becomes of it.
pub type Field = (&'static str, Use);

impl Api {
    /// The fields that the API's own SDKs define.
    pub fn fields(self) -> &'static [Field] {
        match self {
            Self::Chat => CHAT,
            Self::Responses => RESPONSES,
            Self::Messages => MESSAGES,
        }
    }

    /// Fields that other servers and clients know.
    pub fn extensions(self) -> &'static [Field] {
        match self {
            Self::Chat => CHAT_EXTENSIONS,
            Self::Responses => RESPONSES_EXTENSIONS,
            Self::Messages => MESSAGES_EXTENSIONS,
        }
    }
}

const BILLING: &str = "it only concerns billing, accounts or statistics";
const SPEED: &str = "it only concerns speed; the answer is the same";
const CACHE: &str = "prefixes are cached automatically";
const DETAIL: &str = "it is part of an object that is handled as a whole";
const NO_GRAMMAR: &str = "answers are constrained by JSON schemas (the answer's format, strict tools) only";
const NO_SAMPLER: &str = "the sampler does not support it";
const NO_TEMPLATE: &str = "open models' chat templates have no such setting";
const HOSTED: &str = "it runs on the API vendor's servers";
const SCREENSHOTS: &str = "it requires images, and the model only reads text";
const TEXT_ONLY: &str = "the model only reads and writes text";
const NO_STATE: &str = "this server does not store such objects; send the conversation itself";
const NO_EDITING: &str = "prompts are never shortened or summarised by the server";
const LEGACY: &str = "it was replaced by `tools`, `tool_choice` and `tool_calls`";
const IDENTITY: &str = "it only names the item";
const ALL_TOOLS: &str = "all tools are in the prompt from the start";
const ONLY_MODEL: &str = "only the model itself calls tools";
const ABSENT_SEARCH: &str =
    "coding agents send it by default; web search is not available and is omitted from the prompt";

/// Formats of an answer.
const FORMATS: &[&str] = &["\"text\"", "\"json_object\"", "\"json_schema\""];

const CHAT: &[Field] = &[
    ("audio", Only(&[], TEXT_ONLY)),
    ("frequency_penalty", Honoured),
    ("function_call", Only(&["\"none\"", "\"auto\""], LEGACY)),
    ("functions", Only(&["[]"], LEGACY)),
    ("logit_bias", Honoured),
    ("logprobs", Honoured),
    ("max_completion_tokens", Honoured),
    ("max_tokens", Honoured),
    ("messages", Honoured),
    ("messages[].audio", Only(&[], TEXT_ONLY)),
    ("messages[].content", Honoured),
    ("messages[].content[type=file]", Only(&[], TEXT_ONLY)),
    ("messages[].content[type=image_url]", Only(&[], TEXT_ONLY)),
    ("messages[].content[type=input_audio]", Only(&[], TEXT_ONLY)),
    ("messages[].content[type=refusal]", Honoured),
    ("messages[].content[type=refusal].refusal", Honoured),
    ("messages[].content[type=text]", Honoured),
    ("messages[].content[type=text].text", Honoured),
    ("messages[].content[].prompt_cache_breakpoint", NoEffect(CACHE)),
    ("messages[].function_call", Only(&[], LEGACY)),
    ("messages[].name", Honoured),
    ("messages[].refusal", Honoured),
    ("messages[].role", Honoured),
    ("messages[].tool_call_id", Honoured),
    ("messages[].tool_calls", Honoured),
    ("metadata", NoEffect(BILLING)),
    ("modalities", Only(&["[\"text\"]", "[]"], TEXT_ONLY)),
    ("model", NoEffect("any name means the model in training, and is echoed")),
    ("moderation", Only(&[], HOSTED)),
    ("n", Honoured),
    ("parallel_tool_calls", Honoured),
    ("prediction", NoEffect(SPEED)),
    ("presence_penalty", Honoured),
    ("prompt_cache_key", NoEffect(CACHE)),
    ("prompt_cache_options", NoEffect(CACHE)),
    ("prompt_cache_retention", NoEffect(CACHE)),
    ("reasoning_effort", Honoured),
    ("response_format", Honoured),
    ("response_format.json_schema", Honoured),
    ("response_format.type", Only(FORMATS, NO_GRAMMAR)),
    ("safety_identifier", NoEffect(BILLING)),
    ("seed", Honoured),
    ("service_tier", NoEffect(BILLING)),
    ("stop", Honoured),
    ("store", NoEffect("stored chats are only used by OpenAI's own tools")),
    ("stream", Honoured),
    ("stream_options", Honoured),
    ("stream_options.include_obfuscation", NoEffect("it only pads events")),
    ("stream_options.include_usage", Honoured),
    ("temperature", Honoured),
    ("tool_choice", Honoured),
    (
        "tool_choice.allowed_tools",
        Only(&[], "send the allowed tools as `tools`"),
    ),
    (
        "tool_choice.custom",
        Only(&[], "only functions can be called by chat completions"),
    ),
    ("tool_choice.function", Honoured),
    ("tool_choice.type", Honoured),
    ("tools", Honoured),
    (
        "tools[type=custom]",
        Only(&[], "only functions can be called by chat completions"),
    ),
    ("tools[type=function]", Honoured),
    ("tools[type=function].function", Honoured),
    ("tools[type=function].function.strict", Honoured),
    ("top_logprobs", Honoured),
    ("top_p", Honoured),
    ("user", NoEffect(BILLING)),
    ("verbosity", NoEffect(NO_TEMPLATE)),
    ("web_search_options", Only(&[], HOSTED)),
];

const CHAT_EXTENSIONS: &[Field] = &[
    ("add_generation_prompt", Honoured),
    (
        "add_special_tokens",
        Only(&["false"], "the chat template writes all special tokens"),
    ),
    ("allowed_token_ids", Only(&["[]"], NO_SAMPLER)),
    ("bad_words", Only(&["[]"], NO_SAMPLER)),
    ("best_of", Only(&["1"], NO_SAMPLER)),
    ("cache_salt", NoEffect(CACHE)),
    ("chat_template", Only(&[], "the model's own chat template is used")),
    ("chat_template_kwargs", Honoured),
    ("continue_final_message", Honoured),
    (
        "documents",
        Only(&["[]"], "pass them to the template in `chat_template_kwargs`"),
    ),
    ("dry_multiplier", Only(&["0"], NO_SAMPLER)),
    ("ebnf", Only(&[], NO_GRAMMAR)),
    ("echo", Only(&["false"], "answers contain only what the model sampled")),
    ("enable_thinking", Honoured),
    ("grammar", Only(&[], NO_GRAMMAR)),
    ("guided_choice", Only(&["[]"], NO_GRAMMAR)),
    ("guided_decoding_backend", NoEffect(NO_GRAMMAR)),
    ("guided_grammar", Only(&[], NO_GRAMMAR)),
    ("guided_json", Only(&[], NO_GRAMMAR)),
    ("guided_json_object", Only(&["false"], NO_GRAMMAR)),
    ("guided_regex", Only(&[], NO_GRAMMAR)),
    ("guided_whitespace_pattern", NoEffect(NO_GRAMMAR)),
    ("ignore_eos", Only(&["false"], NO_SAMPLER)),
    (
        "include_reasoning",
        Only(&["true"], "thinking is always returned, as `reasoning_content`"),
    ),
    (
        "include_stop_str_in_output",
        Only(&["false"], "stop strings are reported as `stop_reason`"),
    ),
    ("json_schema", Only(&[], NO_GRAMMAR)),
    ("length_penalty", Only(&["1"], NO_SAMPLER)),
    ("logits_processors", Only(&["[]"], NO_SAMPLER)),
    ("messages[].partial", Only(&["false"], "use `continue_final_message`")),
    ("messages[].prefix", Only(&["false"], "use `continue_final_message`")),
    ("messages[].reasoning", Honoured),
    ("messages[].reasoning_content", Honoured),
    ("min_p", Honoured),
    ("min_tokens", Only(&["0"], NO_SAMPLER)),
    ("mirostat", Only(&["0"], NO_SAMPLER)),
    ("mm_processor_kwargs", Only(&["{}"], TEXT_ONLY)),
    ("priority", NoEffect(SPEED)),
    (
        "prompt_logprobs",
        Only(&["0"], "log-probabilities are those of sampled tokens"),
    ),
    ("reasoning", Honoured),
    ("reasoning.effort", Honoured),
    ("reasoning.enabled", Honoured),
    (
        "reasoning.exclude",
        Only(&["false"], "thinking is always returned, as `reasoning_content`"),
    ),
    (
        "reasoning.max_tokens",
        NoEffect("the model itself ends its thinking; `max_tokens` bounds the answer"),
    ),
    ("regex", Only(&[], NO_GRAMMAR)),
    ("repeat_penalty", Only(&["1"], NO_SAMPLER)),
    ("repetition_penalty", Only(&["1"], NO_SAMPLER)),
    ("request_id", NoEffect(BILLING)),
    ("return_token_ids", Honoured),
    (
        "separate_reasoning",
        Only(&["true"], "thinking is always returned, as `reasoning_content`"),
    ),
    (
        "skip_special_tokens",
        Only(&["true"], "special tokens are never part of an answer's text"),
    ),
    ("stop_token_ids", Only(&["[]"], NO_SAMPLER)),
    ("stream_options.continuous_usage_stats", Honoured),
    ("structural_tag", Only(&[], NO_GRAMMAR)),
    ("structured_outputs", Only(&["{}"], NO_GRAMMAR)),
    ("tfs_z", Only(&["1"], NO_SAMPLER)),
    ("thinking", Honoured),
    ("thinking.type", Honoured),
    ("top_a", Only(&["0"], NO_SAMPLER)),
    ("top_k", Honoured),
    ("truncate_prompt_tokens", Only(&[], NO_EDITING)),
    ("typical_p", Only(&["1"], NO_SAMPLER)),
    ("use_beam_search", Only(&["false"], NO_SAMPLER)),
    ("xtc_probability", Only(&["0"], NO_SAMPLER)),
];

const RESPONSES: &[Field] = &[
    ("access_programs", NoEffect(BILLING)),
    ("background", Only(&["false"], NO_STATE)),
    ("background_options", NoEffect("there are no background answers")),
    ("context_management", Only(&["[]"], NO_EDITING)),
    ("conversation", Only(&[], NO_STATE)),
    ("image", NoEffect("there are no images")),
    ("include", Honoured),
    ("input", Honoured),
    ("input[type=additional_tools]", Only(&[], "send them as `tools`")),
    ("input[type=apply_patch_call]", Honoured),
    ("input[type=apply_patch_call].operation", Honoured),
    ("input[type=apply_patch_call_output]", Honoured),
    ("input[type=code_interpreter_call]", Only(&[], HOSTED)),
    (
        "input[type=compaction]",
        Only(&[], "only OpenAI's servers can read its text"),
    ),
    ("input[type=compaction_trigger]", Only(&[], NO_EDITING)),
    ("input[type=computer_call]", Only(&[], SCREENSHOTS)),
    ("input[type=computer_call_output]", Only(&[], SCREENSHOTS)),
    (
        "input[type=configuration_update]",
        Only(&[], "send the settings as `reasoning` and `text`"),
    ),
    ("input[type=custom_tool_call]", Honoured),
    ("input[type=custom_tool_call].input", Honoured),
    ("input[type=custom_tool_call_output]", Honoured),
    ("input[type=file_search_call]", Only(&[], HOSTED)),
    ("input[type=function_call]", Honoured),
    ("input[type=function_call_output]", Honoured),
    ("input[type=image_generation_call]", Only(&[], HOSTED)),
    ("input[type=item_reference]", Honoured),
    ("input[type=local_shell_call]", Honoured),
    ("input[type=local_shell_call_output]", Honoured),
    ("input[type=mcp_approval_request]", Only(&[], HOSTED)),
    ("input[type=mcp_approval_response]", Only(&[], HOSTED)),
    ("input[type=mcp_call]", Only(&[], HOSTED)),
    ("input[type=mcp_list_tools]", Only(&[], HOSTED)),
    ("input[type=message]", Honoured),
    ("input[type=program]", Only(&[], HOSTED)),
    ("input[type=program_output]", Only(&[], HOSTED)),
    ("input[type=reasoning]", Honoured),
    (
        "input[type=reasoning].encrypted_content",
        NoEffect("thinking is sent unencrypted"),
    ),
    ("input[type=reasoning].summary", Honoured),
    ("input[type=shell_call]", Honoured),
    ("input[type=shell_call].environment", NoEffect(DETAIL)),
    ("input[type=shell_call_output]", Honoured),
    (
        "input[type=shell_call_output].max_output_length",
        NoEffect("the client has truncated its output already"),
    ),
    ("input[type=tool_search_call]", Only(&[], ALL_TOOLS)),
    ("input[type=tool_search_output]", Only(&[], ALL_TOOLS)),
    ("input[type=web_search_call]", Only(&[], HOSTED)),
    ("input[].action", Honoured),
    ("input[].arguments", Honoured),
    ("input[].async", Only(&["false"], NO_STATE)),
    ("input[].call_id", Honoured),
    ("input[].caller", NoEffect(ONLY_MODEL)),
    ("input[].content", Honoured),
    ("input[].id", NoEffect(IDENTITY)),
    ("input[].name", Honoured),
    ("input[].namespace", Honoured),
    ("input[].output", Honoured),
    ("input[].phase", NoEffect(NO_TEMPLATE)),
    ("input[].role", Honoured),
    ("input[].status", NoEffect(IDENTITY)),
    ("instructions", Honoured),
    ("max_output_tokens", Honoured),
    ("max_tool_calls", NoEffect("there are no hosted tools")),
    ("metadata", NoEffect("it is echoed")),
    ("model", NoEffect("any name means the model in training, and is echoed")),
    ("moderation", Only(&[], HOSTED)),
    ("parallel_tool_calls", Honoured),
    ("previous_response_id", Honoured),
    ("prompt", Only(&[], NO_STATE)),
    ("prompt_cache_key", NoEffect(CACHE)),
    ("prompt_cache_options", NoEffect(CACHE)),
    ("prompt_cache_retention", NoEffect(CACHE)),
    ("reasoning", Honoured),
    (
        "reasoning.context",
        NoEffect("the chat template decides which thinking of earlier turns it includes"),
    ),
    ("reasoning.effort", Honoured),
    ("reasoning.generate_summary", NoEffect("thinking is returned in full")),
    ("reasoning.mode", NoEffect(NO_TEMPLATE)),
    ("reasoning.summary", NoEffect("thinking is returned in full")),
    ("safety_identifier", NoEffect(BILLING)),
    ("service_tier", NoEffect(BILLING)),
    ("store", Honoured),
    ("stream", Honoured),
    ("stream_options", NoEffect("it only pads events")),
    ("temperature", Honoured),
    ("text", Honoured),
    ("text.format", Honoured),
    ("text.verbosity", NoEffect(NO_TEMPLATE)),
    ("tool_choice", Honoured),
    ("tool_choice.mode", Only(&[], "send the allowed tools as `tools`")),
    ("tool_choice.name", Honoured),
    ("tool_choice.server_label", Only(&[], HOSTED)),
    ("tool_choice.tools", Only(&[], "send the allowed tools as `tools`")),
    ("tool_choice.type", Honoured),
    ("tools", Honoured),
    ("tools[type=apply_patch]", Honoured),
    ("tools[type=code_interpreter]", Only(&[], HOSTED)),
    ("tools[type=computer]", Only(&[], SCREENSHOTS)),
    ("tools[type=computer_use_preview]", Only(&[], SCREENSHOTS)),
    ("tools[type=custom]", Honoured),
    (
        "tools[type=custom].format",
        NoEffect("a grammar is in the prompt, but nothing enforces it"),
    ),
    ("tools[type=file_search]", Only(&[], HOSTED)),
    ("tools[type=function]", Honoured),
    ("tools[type=image_generation]", Only(&[], HOSTED)),
    ("tools[type=local_shell]", Honoured),
    ("tools[type=mcp]", Only(&[], HOSTED)),
    ("tools[type=namespace]", Honoured),
    ("tools[type=namespace].tools", Honoured),
    ("tools[type=programmatic_tool_calling]", Only(&[], HOSTED)),
    ("tools[type=shell]", Honoured),
    ("tools[type=shell].environment", Honoured),
    ("tools[type=tool_search]", Only(&[], ALL_TOOLS)),
    ("tools[type=web_search]", NoEffect(ABSENT_SEARCH)),
    ("tools[type=web_search_2025_08_26]", NoEffect(ABSENT_SEARCH)),
    ("tools[type=web_search_preview]", NoEffect(ABSENT_SEARCH)),
    ("tools[type=web_search_preview_2025_03_11]", NoEffect(ABSENT_SEARCH)),
    ("tools[].allowed_callers", Only(&["[\"direct\"]", "[]"], ONLY_MODEL)),
    ("tools[].async", Only(&["false"], NO_STATE)),
    ("tools[].defer_loading", NoEffect(ALL_TOOLS)),
    ("tools[].description", Honoured),
    ("tools[].name", Honoured),
    (
        "tools[].output_schema",
        NoEffect("it only concerns programs that call tools"),
    ),
    ("tools[].parameters", Honoured),
    ("tools[].strict", Honoured),
    (
        "top_logprobs",
        Only(&["0"], "log-probabilities are available in chat completions"),
    ),
    ("top_p", Honoured),
    ("truncation", Only(&["\"disabled\""], NO_EDITING)),
    ("user", NoEffect(BILLING)),
];

const INCLUDED: &[&str] = &[
    "\"reasoning.encrypted_content\"",
    "\"file_search_call.results\"",
    "\"web_search_call.results\"",
    "\"web_search_call.action.sources\"",
    "\"message.input_image.image_url\"",
    "\"computer_call_output.output.image_url\"",
    "\"code_interpreter_call.outputs\"",
];

const RESPONSES_EXTENSIONS: &[Field] = &[
    ("client_metadata", NoEffect(BILLING)),
    (
        "include[]",
        Only(INCLUDED, "log-probabilities are available in chat completions"),
    ),
    ("text.format.type", Only(FORMATS, NO_GRAMMAR)),
    ("tools[type=shell].environment.type", Only(&["\"local\""], HOSTED)),
];

const MESSAGES: &[Field] = &[
    ("betas", NoEffect("the fields of each beta are listed separately")),
    ("billing_policy", NoEffect(BILLING)),
    ("cache_control", NoEffect(CACHE)),
    ("compaction", Only(&[], NO_EDITING)),
    ("container", Only(&[], HOSTED)),
    ("context_management", Honoured),
    ("context_management.edits", Honoured),
    (
        "context_management.edits[type=clear_thinking_20251015]",
        NoEffect("the chat template decides which thinking of earlier turns it includes"),
    ),
    (
        "context_management.edits[type=clear_tool_uses_20250919]",
        Only(&[], NO_EDITING),
    ),
    ("context_management.edits[type=compact_20260112]", Only(&[], NO_EDITING)),
    ("diagnostics", NoEffect(CACHE)),
    ("fallback_credit_token", NoEffect(BILLING)),
    ("fallbacks", NoEffect("no request is declined by a policy")),
    ("inference_geo", NoEffect(BILLING)),
    ("max_tokens", Honoured),
    ("mcp_servers", Only(&["[]"], HOSTED)),
    ("messages", Honoured),
    ("messages[].clear_at", Only(&[], NO_EDITING)),
    ("messages[].content", Honoured),
    ("messages[].content[type=advisor_tool_result]", Only(&[], HOSTED)),
    (
        "messages[].content[type=bash_code_execution_tool_result]",
        Only(&[], HOSTED),
    ),
    ("messages[].content[type=code_execution_tool_result]", Only(&[], HOSTED)),
    ("messages[].content[type=compaction]", Only(&[], NO_EDITING)),
    ("messages[].content[type=container_upload]", Only(&[], HOSTED)),
    ("messages[].content[type=document]", Only(&[], TEXT_ONLY)),
    (
        "messages[].content[type=fallback]",
        NoEffect("it only names the model that continued"),
    ),
    ("messages[].content[type=image]", Only(&[], TEXT_ONLY)),
    ("messages[].content[type=mcp_tool_listing]", Only(&[], HOSTED)),
    ("messages[].content[type=mcp_tool_result]", Only(&[], HOSTED)),
    ("messages[].content[type=mcp_tool_use]", Only(&[], HOSTED)),
    (
        "messages[].content[type=redacted_thinking]",
        NoEffect("only Anthropic's servers can read its text"),
    ),
    ("messages[].content[type=search_result]", Only(&[], "send it as text")),
    ("messages[].content[type=server_tool_use]", Only(&[], HOSTED)),
    ("messages[].content[type=text]", Honoured),
    ("messages[].content[type=text].text", Honoured),
    (
        "messages[].content[type=text_editor_code_execution_tool_result]",
        Only(&[], HOSTED),
    ),
    ("messages[].content[type=thinking]", Honoured),
    (
        "messages[].content[type=thinking].signature",
        NoEffect("thinking is sent unencrypted"),
    ),
    ("messages[].content[type=thinking].thinking", Honoured),
    (
        "messages[].content[type=tool_addition]",
        Only(&[], "send the tools as `tools`"),
    ),
    (
        "messages[].content[type=tool_removal]",
        Only(&[], "send the tools as `tools`"),
    ),
    ("messages[].content[type=tool_result]", Honoured),
    ("messages[].content[type=tool_result].content", Honoured),
    (
        "messages[].content[type=tool_result].is_error",
        NoEffect("the result's text already says so"),
    ),
    ("messages[].content[type=tool_result].tool_use_id", Honoured),
    ("messages[].content[type=tool_search_tool_result]", Only(&[], HOSTED)),
    ("messages[].content[type=tool_use]", Honoured),
    ("messages[].content[type=tool_use].id", Honoured),
    ("messages[].content[type=tool_use].input", Honoured),
    ("messages[].content[type=tool_use].name", Honoured),
    ("messages[].content[type=web_fetch_tool_result]", Only(&[], HOSTED)),
    ("messages[].content[type=web_search_tool_result]", Only(&[], HOSTED)),
    ("messages[].content[].cache_control", NoEffect(CACHE)),
    ("messages[].content[].caller", NoEffect(ONLY_MODEL)),
    (
        "messages[].content[].citations",
        NoEffect("there are no documents to cite"),
    ),
    ("messages[].content[].toolset_name", NoEffect(DETAIL)),
    ("messages[].output_config", Only(&[], "send it for the whole request")),
    ("messages[].role", Honoured),
    ("metadata", NoEffect(BILLING)),
    ("model", NoEffect("any name means the model in training, and is echoed")),
    ("output_config", Honoured),
    ("output_config.effort", Honoured),
    ("output_config.format", Honoured),
    ("output_config.task_budget", Only(&[], NO_TEMPLATE)),
    ("service_tier", NoEffect(BILLING)),
    ("speed", NoEffect(SPEED)),
    ("stop_sequences", Honoured),
    ("stream", Honoured),
    ("system", Honoured),
    ("thinking", Honoured),
    ("thinking.block_binding", NoEffect(DETAIL)),
    (
        "thinking.budget_tokens",
        NoEffect("the model itself ends its thinking; `max_tokens` bounds the answer"),
    ),
    ("thinking.display", Honoured),
    ("thinking.type", Honoured),
    ("thread", Only(&[], NO_STATE)),
    ("tool_choice", Honoured),
    ("tool_choice.disable_parallel_tool_use", Honoured),
    ("tool_choice.name", Honoured),
    ("tool_choice.type", Honoured),
    ("tools", Honoured),
    ("tools[type=advisor_20260301]", Only(&[], HOSTED)),
    ("tools[type=bash_20241022]", Honoured),
    ("tools[type=bash_20250124]", Honoured),
    ("tools[type=browser_toolset_20260801]", Only(&[], SCREENSHOTS)),
    ("tools[type=code_execution_20250522]", Only(&[], HOSTED)),
    ("tools[type=code_execution_20250825]", Only(&[], HOSTED)),
    ("tools[type=code_execution_20260120]", Only(&[], HOSTED)),
    ("tools[type=code_execution_20260521]", Only(&[], HOSTED)),
    ("tools[type=computer_20241022]", Only(&[], SCREENSHOTS)),
    ("tools[type=computer_20250124]", Only(&[], SCREENSHOTS)),
    ("tools[type=computer_20251124]", Only(&[], SCREENSHOTS)),
    ("tools[type=computer_toolset_20260801]", Only(&[], SCREENSHOTS)),
    ("tools[type=custom]", Honoured),
    ("tools[type=mcp_toolset]", Only(&[], HOSTED)),
    ("tools[type=memory_20250818]", Honoured),
    ("tools[type=text_editor_20241022]", Honoured),
    ("tools[type=text_editor_20250124]", Honoured),
    ("tools[type=text_editor_20250429]", Honoured),
    ("tools[type=text_editor_20250728]", Honoured),
    (
        "tools[type=text_editor_20250728].max_characters",
        NoEffect("the client truncates what it shows"),
    ),
    ("tools[type=tool_search_tool_bm25]", Only(&[], HOSTED)),
    ("tools[type=tool_search_tool_bm25_20251119]", Only(&[], HOSTED)),
    ("tools[type=tool_search_tool_regex]", Only(&[], HOSTED)),
    ("tools[type=tool_search_tool_regex_20251119]", Only(&[], HOSTED)),
    ("tools[type=web_fetch_20250910]", Only(&[], HOSTED)),
    ("tools[type=web_fetch_20260209]", Only(&[], HOSTED)),
    ("tools[type=web_fetch_20260309]", Only(&[], HOSTED)),
    ("tools[type=web_fetch_20260318]", Only(&[], HOSTED)),
    ("tools[type=web_search_20250305]", Only(&[], HOSTED)),
    ("tools[type=web_search_20260209]", Only(&[], HOSTED)),
    ("tools[type=web_search_20260318]", Only(&[], HOSTED)),
    ("tools[].allowed_callers", Only(&["[\"direct\"]", "[]"], ONLY_MODEL)),
    ("tools[].cache_control", NoEffect(CACHE)),
    ("tools[].defer_loading", NoEffect(ALL_TOOLS)),
    ("tools[].description", Honoured),
    (
        "tools[].eager_input_streaming",
        NoEffect("a call is sent once it is complete"),
    ),
    ("tools[].input_examples", Honoured),
    ("tools[].input_schema", Honoured),
    ("tools[].name", Honoured),
    ("tools[].strict", Honoured),
    ("user_profile_id", NoEffect(BILLING)),
    ("workspace_id", NoEffect(BILLING)),
];

const MESSAGES_EXTENSIONS: &[Field] = &[
    ("anthropic_version", NoEffect("there is one version")),
    ("output_format", Only(&[], NO_GRAMMAR)),
    ("temperature", Honoured),
    ("top_k", Honoured),
    ("top_p", Honoured),
];
