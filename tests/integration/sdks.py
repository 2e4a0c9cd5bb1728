"""Real SDKs play the same episode, three turns and a tool; each must leave the very row that bare HTTP leaves.

Usage: sdks.py WORK_DIRECTORY NODE_PROGRAM...
"""

import asyncio
import importlib.metadata
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import anthropic
import openai
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI

from swarm import Swarm, same_row, tool_call, trained

SYSTEM = "You answer questions about the weather."
QUESTIONS = ["How is the weather in Graz?", "In one word?"]
LOOK, RESULT, ANSWER, WORD = "Let me look.", "21 °C, sunny", "It is sunny in Graz: 21 °C.", "Sunny."
THOUGHT = "I need the weather."
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "get_weather", "description": "The weather of a city.", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": TOOL}]
ARGUMENTS = {"city": "Graz"}
SCRIPT = [
    {"turn": 0, "tool": "get_weather", "text": f"<think>\n{THOUGHT}\n</think>\n\n{LOOK}\n{tool_call('get_weather', ARGUMENTS)}"},
    {"turn": 1, "text": ANSWER},
    {"turn": 2, "text": WORD},
    {"contains": "plain", "text": "just text"},
    {"contains": "long", "text": "and so on " * 300},
]
START = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTIONS[0]}]
LONG = [{"role": "user", "content": "long"}]


def bare(episode):
    """The reference: plain HTTP."""
    messages, sampled = list(START), []
    for follow in [None, {"role": "user", "content": QUESTIONS[1]}, None]:
        choice = episode.chat(model="m", messages=messages, tools=TOOLS)["choices"][0]
        sampled += choice["token_ids"]
        messages.append(choice["message"])
        for call in choice["message"].get("tool_calls") or []:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": RESULT})
        if follow:
            messages.append(follow)
    return sampled


def check_call(call):
    assert call.function.name == "get_weather" and json.loads(call.function.arguments) == ARGUMENTS, call


def client(episode, cls=openai.OpenAI, **options):
    return cls(base_url=episode.base_url, api_key=episode.key, **options)


def openai_sync(episode):
    chat = client(episode).chat.completions
    messages = list(START)
    first = chat.create(model="m", messages=messages, tools=TOOLS)
    message = first.choices[0].message
    assert (message.content, message.reasoning_content) == (LOOK, THOUGHT), message
    assert first.choices[0].finish_reason == "tool_calls" and first.model == "m"
    assert first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens
    check_call(message.tool_calls[0])
    messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT}]
    second = chat.create(model="m", messages=messages, tools=TOOLS)
    assert second.choices[0].message.content == ANSWER
    assert second.usage.prompt_tokens_details.cached_tokens > 0
    messages += [second.choices[0].message, {"role": "user", "content": QUESTIONS[1]}]
    third = chat.create(model="m", messages=messages, tools=TOOLS, logprobs=True, top_logprobs=2)
    assert third.choices[0].message.content == WORD
    assert len(third.choices[0].logprobs.content) == third.usage.completion_tokens


async def openai_async_stream(episode):
    chat = client(episode, openai.AsyncOpenAI).chat.completions
    messages = list(START)

    async def ask():
        content, calls, usage = "", {}, None
        options = {"include_usage": True}
        stream = await chat.create(model="m", messages=messages, tools=TOOLS, stream=True, stream_options=options)
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                content += choice.delta.content or ""
                for delta in choice.delta.tool_calls or []:
                    call = calls.setdefault(delta.index, {"id": delta.id, "type": "function", "function": {"name": "", "arguments": ""}})
                    call["function"]["name"] += delta.function.name or ""
                    call["function"]["arguments"] += delta.function.arguments or ""
        assert usage.completion_tokens > 0
        return {"role": "assistant", "content": content, **({"tool_calls": list(calls.values())} if calls else {})}

    message = await ask()
    assert message["content"] == LOOK, message
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == ARGUMENTS
    messages += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": RESULT}]
    message = await ask()
    assert message["content"] == ANSWER
    messages += [message, {"role": "user", "content": QUESTIONS[1]}]
    assert (await ask())["content"] == WORD


def openai_stream_helper(episode):
    """`chat.completions.stream`, the SDK's own accumulation."""
    messages = list(START)
    for expected, follow in [(LOOK, None), (ANSWER, QUESTIONS[1]), (WORD, None)]:
        with client(episode).chat.completions.stream(model="m", messages=messages, tools=TOOLS) as stream:
            deltas = [event.delta for event in stream if event.type == "content.delta"]
            message = stream.get_final_completion().choices[0].message
        assert message.content == "".join(deltas) == expected, message
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in message.tool_calls or []:
            check_call(call)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULT})
        if follow:
            messages.append({"role": "user", "content": follow})
    parsed = client(episode.swarm.claim()).beta.chat.completions.parse(model="m", messages=[{"role": "user", "content": "plain"}])
    assert parsed.choices[0].message.content == "just text"


def responses_items(episode):
    """Every turn sends all items again, as Codex does."""
    tools, items = [{"type": "function", **TOOL}], [{"role": "user", "content": QUESTIONS[0]}]
    api = client(episode).responses
    for expected, follow in [(LOOK, None), (ANSWER, QUESTIONS[1]), (WORD, None)]:
        answer = api.create(model="m", instructions=SYSTEM, input=items, tools=tools, store=False)
        assert answer.output_text == expected and answer.status == "completed", answer
        items += [item.model_dump(exclude_none=True) for item in answer.output]
        for item in answer.output:
            if item.type == "function_call":
                assert json.loads(item.arguments) == ARGUMENTS
                items.append({"type": "function_call_output", "call_id": item.call_id, "output": RESULT})
        if follow:
            items.append({"role": "user", "content": follow})


def responses_stream(episode):
    """Every turn goes on from the answer before, streamed through the SDK's own accumulation."""
    api, tools = client(episode).responses, [{"type": "function", **TOOL}]
    previous, given = None, [{"role": "user", "content": QUESTIONS[0]}]
    for expected, follow in [(LOOK, None), (ANSWER, QUESTIONS[1]), (WORD, None)]:
        options = {"previous_response_id": previous} if previous else {}
        with api.stream(model="m", instructions=SYSTEM, input=given, tools=tools, **options) as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
            answer = stream.get_final_response()
        assert answer.output_text == "".join(deltas) == expected, answer
        previous, given = answer.id, [{"role": "user", "content": follow}] if follow else []
        for item in answer.output:
            if item.type == "function_call":
                given.append({"type": "function_call_output", "call_id": item.call_id, "output": RESULT})


def anthropic_client(episode, **options):
    return anthropic.Anthropic(base_url=episode.anthropic_base_url, api_key=episode.key, **options)


def anthropic_turns(episode, ask):
    tools = [{"name": TOOL["name"], "description": TOOL["description"], "input_schema": SCHEMA}]
    messages = [{"role": "user", "content": QUESTIONS[0]}]
    options = {"model": "m", "max_tokens": 500, "system": SYSTEM, "tools": tools}
    counted = anthropic_client(episode).messages.count_tokens(**{k: v for k, v in options.items() if k != "max_tokens"}, messages=messages)
    message = ask(messages=messages, thinking={"type": "enabled", "budget_tokens": 1024}, **options)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"], message
    assert (message.content[0].thinking, message.content[1].text) == (THOUGHT, LOOK)
    assert message.content[2].input == ARGUMENTS and message.stop_reason == "tool_use"
    assert counted.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens
    result = {"type": "tool_result", "tool_use_id": message.content[2].id, "content": RESULT}
    messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    message = ask(messages=messages, **options)
    assert (message.content[0].text, message.stop_reason) == (ANSWER, "end_turn")
    assert message.usage.cache_read_input_tokens > 0
    messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": QUESTIONS[1]}]
    message = ask(messages=messages, stop_sequences=["never"], **options)
    assert [block.text for block in message.content] == [WORD]


def anthropic_sync(episode):
    anthropic_turns(episode, anthropic_client(episode).messages.create)


def anthropic_stream(episode):
    def ask(**options):
        with anthropic_client(episode).messages.stream(**options) as stream:
            text = "".join(stream.text_stream)
            message = stream.get_final_message()
        assert text == "".join(block.text for block in message.content if block.type == "text")
        return message

    anthropic_turns(episode, ask)


def langchain(episode):
    model = ChatOpenAI(model="m", base_url=episode.base_url, api_key=episode.key).bind_tools(TOOLS)
    messages = [SystemMessage(SYSTEM), HumanMessage(QUESTIONS[0])]
    first = model.invoke(messages)
    assert first.content == LOOK and first.tool_calls[0]["args"] == ARGUMENTS, first
    messages += [first, ToolMessage(RESULT, tool_call_id=first.tool_calls[0]["id"])]
    pieces = list(model.stream(messages))
    second = pieces[0]
    for piece in pieces[1:]:
        second += piece
    assert second.content == ANSWER and len(pieces) > 3, second
    messages += [second, HumanMessage(QUESTIONS[1])]
    assert model.invoke(messages).content == WORD


def node(program):
    def play(episode):
        story = {
            "system": SYSTEM, "questions": QUESTIONS, "tools": TOOLS, "result": RESULT,
            "expected": [LOOK, ANSWER, WORD], "arguments": ARGUMENTS,
        }
        environment = {**os.environ, "OPENAI_BASE_URL": episode.base_url, "OPENAI_API_KEY": episode.key}
        subprocess.run(program, input=json.dumps(story), text=True, env=environment, check=True, timeout=120)

    return play


def counted(sdk):
    """A transport that counts what an SDK sends, and a client with it, of the HTTP package that this SDK wants."""
    needs = importlib.metadata.requires(sdk.__name__)
    http = importlib.import_module("httpx2" if any(need.startswith("httpx2") for need in needs) else "httpx")

    class Counted(http.HTTPTransport):
        requests = 0

        def __init__(self):
            super().__init__()
            self.answers = []

        def handle_request(self, request):
            self.requests += 1
            answer = super().handle_request(request)
            self.answers.append((answer.status_code, answer.headers.get("retry-after")))
            return answer

    transport = Counted()
    return transport, http.Client(transport=transport)


def outcome(call):
    try:
        call()
    except (openai.APIError, anthropic.APIError) as error:
        return error
    raise AssertionError("no error")


def both_sdks(episode, key=None):
    """For each SDK: its name, its module, the transport, and a call with given fields."""
    key = key or episode.key
    transport, http = counted(openai)
    chat = openai.OpenAI(base_url=episode.base_url, api_key=key, http_client=http).chat.completions
    yield openai, transport, lambda **given: chat.create(**{"model": "m", "messages": [{"role": "user", "content": "plain"}], **given})
    transport, http = counted(anthropic)
    messages = anthropic.Anthropic(base_url=episode.anthropic_base_url, api_key=key, http_client=http).messages
    yield anthropic, transport, lambda **given: messages.create(
        **{"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "plain"}], **given}
    )


def check_refusals(swarm):
    """Errors that trying again does not help: the class, and one request."""
    ended, live = swarm.claim(), swarm.claim()
    ended.chat(model="m", messages=[{"role": "user", "content": "plain"}])
    ended.end()
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    image_block = [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]
    cases = [
        ("unknown key", "sk-ajet-unknown", {}, {}, "AuthenticationError"),
        ("ended episode", ended.key, {}, {}, "NotFoundError"),
        ("no messages", None, {"messages": []}, {"messages": []}, "BadRequestError"),
        ("image", None, {"messages": image}, {"messages": image_block}, "BadRequestError"),
        ("empty stop", None, {"stop": [""]}, {"stop_sequences": [""]}, "BadRequestError"),
        ("n in a train episode", None, {"n": 2}, None, "BadRequestError"),
        ("a schema", None, {"response_format": {"type": "json_schema", "json_schema": {"name": "s"}}}, None, "BadRequestError"),
        ("penalties", None, {"presence_penalty": 0.5}, None, "BadRequestError"),
        ("tool choice without tools", None, {"tool_choice": "required"}, {"tool_choice": {"type": "any"}}, "BadRequestError"),
    ]
    for what, key, for_openai, for_anthropic, name in cases:
        for sdk, transport, call in both_sdks(live, key):
            given = for_openai if sdk is openai else for_anthropic
            if given is None:
                continue
            error = outcome(lambda: call(**given))
            assert type(error) is getattr(sdk, name), f"{what}: {error!r}"
            assert transport.requests == 1, f"{what}: {transport.answers}"
            if sdk is openai:
                assert error.type and error.message, what
    error = outcome(lambda: client(live).chat.completions.create(model="m", messages=image))
    assert error.param == "messages[0].content[0]", error.param
    error = outcome(lambda: client(ended).chat.completions.create(model="m", messages=START))
    assert error.code == "episode_not_found", error.code
    error = outcome(lambda: client(live).responses.create(model="m", input="a", previous_response_id="resp_none"))
    assert type(error) is openai.BadRequestError and error.code == "previous_response_not_found", error


def check_overflow(directory):
    """A prompt that does not fit: the words that agents compact on, or AgentJet's notice; a shorter one goes on."""
    too_long = [{"role": "user", "content": "x" * 3000}]
    short = [{"role": "user", "content": "plain"}]
    limits = {"max_model_len": 1000}
    room = {"prompt": 500, "response": 500}
    with Swarm(directory / "overflow-error", SCRIPT, {**limits, "on_context_overflow": "error"}, **room) as swarm:
        episode = swarm.claim()
        for sdk, transport, call in both_sdks(episode):
            error = outcome(lambda: call(messages=too_long))
            assert type(error) is sdk.BadRequestError and transport.requests == 1, error
            if sdk is openai:
                assert error.code == "context_length_exceeded"
                wording = r"maximum context length is 1000 tokens\. However, your messages resulted in 3\d\d\d tokens"
            else:
                assert error.body["error"]["type"] == "invalid_request_error", error.body
                wording = r"prompt is too long: 3\d\d\d tokens > 999 maximum"
            assert re.search(wording, error.message), error.message
            call(messages=short)
        error = outcome(lambda: client(episode).responses.create(model="m", input="x" * 3000))
        assert error.code == "context_length_exceeded" and "maximum context length" in error.message, error
        client(episode).responses.create(model="m", input="plain")
    with Swarm(directory / "overflow-length", SCRIPT, limits, **room) as swarm:
        (_, _, chat), (_, _, messages) = both_sdks(swarm.claim())
        choice = chat(messages=too_long).choices[0]
        notice = "AgentJet: Exceeded max model context length. token_overflow("
        assert choice.finish_reason == "length" and choice.message.content.startswith(notice), choice
        message = messages(messages=too_long)
        assert message.stop_reason == "max_tokens" and message.content[0].text.startswith(notice), message
        compacted = [{"role": "user", "content": "a summary"}, {"role": "assistant", "content": choice.message.content}]
        assert chat(messages=[*compacted, *short]).choices[0].finish_reason == "stop"
        assert messages(messages=short, max_tokens=50).stop_reason == "end_turn"


def check_full_queue(directory):
    """With room for one request, another is told to come again, and the SDKs do."""
    with Swarm(directory / "queue", SCRIPT, {"max_num_seqs": 1, "max_queued_requests": 0}) as swarm:
        for sdk, transport, call in both_sdks(swarm.claim()):
            # An answer that is known to be under way until the other call was refused.
            busy = client(swarm.claim()).chat.completions.create(model="m", messages=LONG, stream=True)
            next(iter(busy))
            asking = threading.Thread(target=call)
            asking.start()
            until = time.time() + 60
            while not transport.answers and time.time() < until:
                time.sleep(0.01)
            busy.close()
            asking.join()
            refused, given = transport.answers[:-1], transport.answers[-1]
            assert refused and all(status == 429 and after for status, after in refused), (sdk.__name__, transport.answers)
            assert given[0] == 200, (sdk.__name__, transport.answers)


def check_restart(swarm):
    """The engine dies under a request: 503, which the SDKs try again; by then the episode is lost, which they tell."""
    for turn in range(2):
        sdk, transport, call = list(both_sdks(swarm.claim()))[turn]
        pid = swarm.engine_pid()
        os.kill(pid, signal.SIGSTOP)
        errors = []
        asking = threading.Thread(target=lambda: errors.append(outcome(call)))
        asking.start()
        time.sleep(0.5)
        os.kill(pid, signal.SIGKILL)
        asking.join()
        assert type(errors[0]) is sdk.NotFoundError, errors
        assert transport.answers[0][0] == 503 and transport.answers[0][1], transport.answers
        assert transport.answers[1:] == [(404, None)], transport.answers
        swarm.wait("restarted engine", lambda: swarm.get("/get_engine_status")["engine_status"] == "ENGINE.ROLLING")


def check_hundred_turns(directory):
    """A conversation of a hundred turns, each third with a tool: one row, and only new tokens are computed."""
    turns = range(100)
    call = tool_call("get_weather", ARGUMENTS)
    script = [{"turn": turn, "text": f"Number {turn}." + (f"\n{call}" if turn % 3 == 1 else "")} for turn in turns]
    with Swarm(directory / "turns", script) as swarm:
        episode, messages, before = swarm.claim(), list(START), 0
        for turn in turns:
            answer = client(episode).chat.completions.create(model="m", messages=messages, tools=TOOLS)
            usage, message = answer.usage, answer.choices[0].message
            # The last sampled token was never fed, so it is computed with the new ones.
            assert usage.prompt_tokens_details.cached_tokens >= before - 1, (turn, before, usage)
            before = usage.total_tokens
            messages.append(message)
            if message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT})
            else:
                messages.append({"role": "user", "content": "Go on."})
        record = episode.end()
    usage = record["usage"]
    assert len(record["rows"]) == 1 and usage["counters"] == {}, usage
    computed = usage["prompt_tokens"] - usage["cached_tokens"]
    print(f"a hundred turns: one row of {len(record['rows'][0]['token_ids'])} tokens; {computed} of {usage['prompt_tokens']} prompt tokens computed")


def check_hang_up(swarm):
    """An agent that hangs up in the middle of a stream leaves nothing."""
    episode = swarm.claim()
    stream = client(episode).chat.completions.create(model="m", messages=LONG, stream=True)
    for _, _ in zip(range(5), stream):
        pass
    stream.close()
    client(episode).chat.completions.create(model="m", messages=[{"role": "user", "content": "plain"}])
    record = episode.end()
    assert len(record["rows"]) == 1 and record["usage"]["llm_calls"] == 1, record["usage"]


def main():
    directory, node_program = pathlib.Path(sys.argv[1]), sys.argv[2:]
    plays = {
        "openai": openai_sync,
        "openai, async, streamed": lambda episode: asyncio.run(openai_async_stream(episode)),
        "openai, stream helper and parse": openai_stream_helper,
        "openai responses": responses_items,
        "openai responses, streamed, by id": responses_stream,
        "anthropic": anthropic_sync,
        "anthropic, streamed": anthropic_stream,
        "langchain-openai": langchain,
        "openai for node": node(node_program),
        "vercel ai": node([*node_program[:-1], str(pathlib.Path(node_program[-1]).with_name("vercel.mjs"))]),
    }
    with Swarm(directory / "main", SCRIPT) as swarm:
        episode = swarm.claim()
        sampled = bare(episode)
        (reference,) = episode.end()["rows"]
        assert trained(reference) == sampled, "bare HTTP: what is trained is what was sampled"
        for name, play in plays.items():
            episode = swarm.claim()
            play(episode)
            record = episode.end()
            rows = record["rows"]
            assert len(rows) == 1, f"{name}: {len(rows)} rows, {record['usage']}"
            assert same_row(rows[0], reference), f"{name}: another row than bare HTTP"
            print(f"{name}: one row of {len(rows[0]['token_ids'])} tokens, {len(sampled)} trained")
        check_refusals(swarm)
        check_hang_up(swarm)
        check_restart(swarm)
    check_hundred_turns(directory)
    check_overflow(directory)
    check_full_queue(directory)
    print("errors: right classes, retried where that helps")


main()
