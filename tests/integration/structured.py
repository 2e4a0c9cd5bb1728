"""Typed answers of a random model by the field's libraries: every one is a valid object, and is trained as it was sampled.

Usage: structured.py WORK_DIRECTORY RUNS. It uses the libraries that are installed: instructor and pydantic-ai need other
releases of their common dependencies.
"""

import array
import asyncio
import enum
import importlib.util
import itertools
import json
import pathlib
import random
import shutil
import sys
import time
import uuid
from typing import Annotated, Literal, Optional, Union

import openai
from pydantic import BaseModel, Field

from swarm import Swarm

ROOT = pathlib.Path(__file__).parents[2]
PROMPT = [{"role": "user", "content": "Answer."}]
TASKS, REPEATS = 5, 2
TEMPLATE = """{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Answer with <tool_call>
{"name": ..., "arguments": ...}
</tool_call><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


class Closed(BaseModel, extra="forbid"):
    """Without further properties, whose names a random model would not end soon."""


Short = Annotated[str, Field(max_length=8)]


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"
    SAYS_HI = 'says "hi"'


class Text(Closed):
    text: str


class ShortText(Closed):
    text: Short
    note: Annotated[str, Field(min_length=2, max_length=5)]


class Flag(Closed):
    yes: bool


class Whole(Closed):
    number: int


class Bounded(Closed):
    percent: Annotated[int, Field(ge=0, le=100)]
    below_zero: Annotated[int, Field(lt=0, ge=-12)]


class Real(Closed):
    number: float


class Choice(Closed):
    color: Color
    size: Literal["small", "large"]


class Pattern(Closed):
    code: Annotated[str, Field(pattern=r"^[A-Z]{2}-[0-9]{3}$")]


class Identity(Closed):
    id: uuid.UUID


class Maybe(Closed):
    name: Optional[Short]
    age: Optional[int]


class Either(Closed):
    value: Union[int, bool, Short, None]


class Items(Closed):
    items: Annotated[list[Short], Field(min_length=1, max_length=4)]


class Matrix(Closed):
    rows: Annotated[list[Annotated[list[int], Field(max_length=3)]], Field(max_length=3)]


class Point(Closed):
    x: int
    y: int


class Line(Closed):
    start: Point
    end: Point


class Circle(Closed):
    kind: Literal["circle"]
    radius: float


class Square(Closed):
    kind: Literal["square"]
    side: float


class Shape(Closed):
    shape: Union[Circle, Square]


class Chain(Closed):
    value: int
    next: Optional["Chain"]


class Tree(Closed):
    name: Short
    children: Annotated[list["Tree"], Field(max_length=2)]


class Operation(Closed):
    operator: Literal["+", "*"]
    left: Union[int, "Operation"]
    right: int


class Deep(Closed):
    lines: Annotated[list[Line], Field(max_length=2)]
    tags: Annotated[list[Color], Field(max_length=3)]
    tree: Optional[Tree]


class Unicode(Closed):
    größe: Short
    with_space: Short = Field(alias="with space")


SCHEMAS = [
    Text, ShortText, Flag, Whole, Bounded, Real, Choice, Pattern, Identity, Maybe, Either, Items, Matrix, Line, Shape, Chain,
    Tree, Operation, Deep, Unicode,
]


def client(episode):
    return openai.OpenAI(base_url=episode.base_url, api_key=episode.key, max_retries=0)


def openai_parse(episode, schema):
    answer = client(episode).chat.completions.parse(model="m", messages=PROMPT, response_format=schema)
    return answer.choices[0].message.parsed


def openai_stream(episode, schema):
    with client(episode).chat.completions.stream(model="m", messages=PROMPT, response_format=schema) as stream:
        return stream.get_final_completion().choices[0].message.parsed


def openai_tool(episode, schema):
    tool = openai.pydantic_function_tool(schema)
    answer = client(episode).chat.completions.parse(model="m", messages=PROMPT, tools=[tool], tool_choice="required")
    return answer.choices[0].message.tool_calls[0].function.parsed_arguments


def responses_parse(episode, schema):
    return client(episode).responses.parse(model="m", input="Answer.", text_format=schema).output_parsed


def anthropic_format(episode, schema):
    import anthropic

    api = anthropic.Anthropic(base_url=episode.anthropic_base_url, api_key=episode.key, max_retries=0)
    format = {"type": "json_schema", "schema": schema.model_json_schema()}
    answer = api.messages.create(model="m", max_tokens=4000, messages=PROMPT, output_config={"format": format})
    return schema.model_validate_json(answer.content[0].text)


def instructor_in(mode):
    def ask(episode, schema):
        import instructor

        api = instructor.from_openai(client(episode), mode=instructor.Mode[mode])
        return api.chat.completions.create(model="m", messages=PROMPT, response_model=schema, max_retries=1)

    return ask


def pydantic_ai(tool=False, responses=False, streamed=False):
    def ask(episode, schema):
        from pydantic_ai import Agent, NativeOutput, ToolOutput
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider

        provider = OpenAIProvider(openai_client=openai.AsyncOpenAI(base_url=episode.base_url, api_key=episode.key, max_retries=0))
        model = OpenAIResponsesModel if responses else OpenAIChatModel
        output = ToolOutput if tool else NativeOutput
        agent = Agent(model("m", provider=provider), output_type=output(schema), retries=0)
        if not streamed:
            return agent.run_sync("Answer.").output

        async def read():
            async with agent.run_stream("Answer.") as stream:
                return await stream.get_output()

        return asyncio.run(read())

    return ask


WAYS = {
    "openai": {
        "openai parse": openai_parse,
        "openai stream": openai_stream,
        "openai strict tool": openai_tool,
        "openai responses parse": responses_parse,
    },
    "anthropic": {"anthropic output_config": anthropic_format},
    "instructor": {
        "instructor tools": instructor_in("TOOLS"),
        "instructor json schema": instructor_in("JSON_SCHEMA"),
    },
    "pydantic_ai": {
        "pydantic-ai tool": pydantic_ai(tool=True),
        "pydantic-ai native": pydantic_ai(),
        "pydantic-ai native, streamed": pydantic_ai(streamed=True),
        "pydantic-ai responses": pydantic_ai(responses=True),
    },
}


def random_model(directory):
    """The small built-in model with random weights, room for long answers and a template with tools."""
    shutil.copytree(ROOT / "assets/models/tiny", directory)
    weights = bytearray((directory / "model.safetensors").read_bytes())
    data = 8 + int.from_bytes(weights[:8], "little")
    draw = random.Random(1)
    numbers = array.array("f", (draw.uniform(-0.1, 0.1) for _ in range((len(weights) - data) // 4)))
    weights[data:] = numbers.tobytes()
    (directory / "model.safetensors").write_bytes(weights)
    config = json.loads((directory / "config.json").read_text())
    config["max_position_embeddings"] = 16384
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


def mismatch(swarm):
    """The difference of sampler and trainer in the first update."""
    file = next((swarm.directory / "integration").rglob("metrics.jsonl"))
    metrics = [json.loads(line) for line in file.read_text().splitlines()]
    found = [line["mismatch_kl"] for line in metrics if "mismatch_kl" in line]
    return found[0] if found else None


def main():
    directory, runs = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    model = random_model(directory / "model")
    rollout = {"max_model_len": 16000, "num_repeat": REPEATS, "max_response_length_in_one_turn": 12000, "compute_madness_checklist": []}
    installed = [ways for library, ways in WAYS.items() if importlib.util.find_spec(library)]
    ways = {name: way for group in installed for name, way in group.items()}
    pairs = list(itertools.product(ways, SCHEMAS))
    counts = dict.fromkeys(ways, 0)
    with Swarm(directory / "main", [], rollout, prompt=4000, response=12000, model=model, tasks=TASKS) as swarm:
        trained = TASKS * REPEATS
        episode = swarm.claim()
        started = time.time()
        for run in range(runs):
            # Another pair each time; 7 divides no number of pairs, so every pair comes before one comes again.
            way, schema = pairs[run * 7 % len(pairs)]
            answer = ways[way](episode, schema)
            assert isinstance(answer, schema), (way, schema, answer)
            counts[way] += 1
            if run % 20 == 19:
                print(f"{run + 1} objects after {time.time() - started:.0f} s", flush=True)
            if run % 5 == 4 and run // 5 < trained:
                number = run // 5
                episode.finish(f"task {number // REPEATS}", float(number % REPEATS))
                if number + 1 < trained:
                    episode = swarm.claim()
                else:
                    swarm.wait("a first update", lambda: mismatch(swarm) is not None)
                    swarm.wait("a rolling engine", lambda: swarm.get("/get_engine_status")["engine_status"] == "ENGINE.ROLLING")
                    episode = swarm.claim("eval")
        for way, count in counts.items():
            print(f"{way}: {count} objects")
        print(f"{runs} objects of {len(SCHEMAS)} schemas in {time.time() - started:.0f} s, every one valid")
        if runs >= 5 * trained:
            assert abs(mismatch(swarm)) <= 1e-6, mismatch(swarm)
            print(f"mismatch_kl of the update: {mismatch(swarm):.1e}")


if __name__ == "__main__":
    main()
