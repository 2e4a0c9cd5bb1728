"""Makes tests/fixtures/chat_templates/renders.json: conversations as `transformers` renders them.

    pip install torch transformers jinja2
    python tests/reference/make_chat_templates.py [DIRECTORY]

With a directory, its .jinja files are rendered instead; `AJET_CHAT_TEMPLATES=DIRECTORY cargo test --lib chat_template`
then compares them too.

The .jinja files beside it were published with the models that they are named after; `python.jinja` is ours. A case
that the template refuses (or that Python cannot compute, such as a string plus None) has null as its text.
"""

import json
import pathlib
import sys

from transformers.utils.chat_template_utils import render_jinja_template

DIRECTORY = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "chat_templates"

LLAMA3 = dict(bos_token="<|begin_of_text|>", eos_token="<|eot_id|>")
CHATML = dict(bos_token="<|im_start|>", eos_token="<|im_end|>")
OTHERS = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>")
TEMPLATES = {
    "smollm2": CHATML,
    "qwen2_5": dict(eos_token="<|im_end|>"),
    "qwen3": dict(eos_token="<|im_end|>"),
    "qwen3_original": dict(eos_token="<|im_end|>"),
    "qwen3_instruct_2507": dict(eos_token="<|im_end|>"),
    "qwen3_training": dict(eos_token="<|im_end|>"),
    "llama3": LLAMA3,
    "llama3_1": LLAMA3,
    "llama3_2": LLAMA3,
    "deepseek_r1_distill": dict(bos_token="<｜begin▁of▁sentence｜>", eos_token="<｜end▁of▁sentence｜>"),
    "phi3": dict(eos_token="<|endoftext|>"),
    "phi3_5": dict(eos_token="<|endoftext|>"),
    "python": CHATML,
}


def tool(name, description, **properties):
    parameters = dict(type="object", properties=properties, required=list(properties)[:1])
    return dict(type="function", function=dict(name=name, description=description, parameters=parameters))


WEATHER = tool(
    "get_weather",
    "Weather in a city <now>, \"live\" & it's free",
    city=dict(type="string", description="Name, e.g. Zürich or 東京"),
    days=dict(type="integer", minimum=1, default=1.5),
)
CLOCK = tool("clock", "The time")


def message(role, content, **more):
    return dict(role=role, content=content, **more)


def call(name, arguments, number=0):
    return dict(id=f"call_{number}", type="function", function=dict(name=name, arguments=arguments))


SYSTEM = message("system", "  You are terse.\n")
USER = message("user", "What is 12+7?")
CALLS = [call("get_weather", {"city": "Zürich", "days": 2}, 0), call("clock", {}, 1)]
CONVERSATIONS = {
    "user": [USER],
    "system and user": [SYSTEM, USER],
    "several turns": [USER, message("assistant", "19"), message("user", "And +1? "), message("assistant", "20\n")],
    "unicode": [message("user", "Grüße, 東京 👩‍👩‍👧 \u200b\u00a0!\n\n\tنعم 'a' \"b\" <c> &amp; {{ d }} {% e %}")],
    "empty content": [message("system", ""), message("user", ""), message("assistant", ""), USER],
    "null content": [USER, message("assistant", None), USER],
    "no content": [USER, dict(role="assistant"), USER],
    "one call": [USER, message("assistant", "", tool_calls=CALLS[:1]), message("tool", "rain", tool_call_id="call_0")],
    "one call, null content": [USER, message("assistant", None, tool_calls=CALLS[:1]), message("tool", '{"t": 3}'), USER],
    "one call, no content": [USER, dict(role="assistant", tool_calls=CALLS[:1]), message("tool", '{"t": 3}'), USER],
    "two calls, two answers": [
        SYSTEM,
        USER,
        message("assistant", "Let me see.", tool_calls=CALLS),
        message("tool", "rain", name="get_weather"),
        message("tool", "12:00", name="clock"),
        message("assistant", "Rain at noon."),
        message("user", "Thanks"),
    ],
    "arguments as a string": [
        USER,
        message("assistant", "", tool_calls=[call("get_weather", '{"city":"Zürich"}')]),
        message("tool", "sun"),
    ],
    "tool answer as an object": [
        USER,
        message("assistant", "", tool_calls=CALLS[:1]),
        message("tool", {"temperature": 3.0, "wind": None, "ok": True}),
    ],
    "thinking in the text": [
        USER,
        message("assistant", "<think>\n12+7 is 19\n</think>\n\n19"),
        message("user", "Sure?"),
        message("assistant", "<think>\nyes\n</think>\n\nYes."),
    ],
    "thinking apart": [
        USER,
        message("assistant", "19", reasoning_content="\n12+7\n"),
        message("user", "Sure?"),
        message("assistant", "Yes.", reasoning="It is."),
    ],
    "thinking before calls": [
        USER,
        message("assistant", "", reasoning_content="A tool.", tool_calls=CALLS[:1]),
        message("tool", "rain"),
        message("assistant", "Rain.", reasoning_content="Answer."),
    ],
    "system in the middle": [USER, message("assistant", "19"), message("system", "Be kind."), USER],
    "tool response by the user": [USER, message("assistant", "a"), message("user", "<tool_response>x</tool_response>")],
    "content in parts": [message("user", [dict(type="text", text="What is"), dict(type="text", text=" this?")])],
    "assistant first": [message("assistant", "Hello."), USER],
    "nothing": [],
}
VARIANTS = {
    "": {},
    "tools": dict(tools=[WEATHER, CLOCK]),
    "no prompt": dict(add_generation_prompt=False),
    "no thinking": dict(enable_thinking=False),
    "tools in the system message": dict(tools=[WEATHER], tools_in_user_message=False),
}
# beside the plain variant, which every conversation gets
MORE = {
    "tools": ["user", "system and user", "one call", "one call, null content", "one call, no content", "two calls, two answers", "nothing"],
    "no prompt": ["several turns", "thinking in the text", "thinking apart", "thinking before calls"],
    "no thinking": ["user", "thinking apart"],
    "tools in the system message": ["system and user"],
}


def render(template, special_tokens, messages, arguments):
    arguments = dict(add_generation_prompt=True, date_string="26 Jul 2024", **special_tokens) | arguments
    try:
        rendered, _ = render_jinja_template([messages], chat_template=template, **arguments)
        return rendered[0]
    except Exception:
        return None


def main():
    directory = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY
    templates = TEMPLATES if directory == DIRECTORY else {path.stem: OTHERS for path in sorted(directory.glob("*.jinja"))}
    cases = []
    for name, special_tokens in templates.items():
        template = (directory / f"{name}.jinja").read_text()
        for conversation, messages in CONVERSATIONS.items():
            for variant, arguments in VARIANTS.items():
                if variant and conversation not in MORE[variant]:
                    continue
                text = render(template, special_tokens, messages, arguments)
                cases.append(dict(template=name, conversation=conversation, variant=variant, text=text))
    fixture = dict(special_tokens=templates, conversations=CONVERSATIONS, variants=VARIANTS, cases=cases)
    (directory / "renders.json").write_text(json.dumps(fixture, ensure_ascii=False, indent=1) + "\n")
    refused = sum(case["text"] is None for case in cases)
    print(f"{len(cases)} cases of {len(templates)} templates, {refused} of them refused")


if __name__ == "__main__":
    main()
