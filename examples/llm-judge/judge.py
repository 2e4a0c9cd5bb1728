"""A model API on this machine whose only model is a rule: short, polite answers are good.

It stands for a real judge, such as a large model: it answers the two prompts that `llm_judge` and `group_judge` send."""

import json
import os
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def score(answer):
    """Returns 0 to 10: politeness, and a part for brevity."""
    polite = 5 if re.search(r"\b(please|thank|welcome|glad|sorry)", answer.lower()) else 0
    return polite + 5 * max(0.0, 1 - len(answer) / 400)


def judged(prompt):
    agents = re.findall(r'<agent id="([^"]+)">\n(.*?)</agent>', prompt, re.DOTALL)
    if agents:
        scores = [{"id": agent, "explanation": "by rule", "score": score(work) / 10} for agent, work in agents]
        return json.dumps({"scores": scores})
    answer = prompt.split("Answer:", 1)[-1]
    return f"It is judged by a rule.\nScore: {score(answer):.2f}"


class Judge(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = {"role": "assistant", "content": judged(request["messages"][-1]["content"])}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = json.dumps({"id": "1", "object": "chat.completion", "created": 0, "model": "rule", "choices": [choice]})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("JUDGE_PORT", "8901"))), Judge)
print(f"judging at http://127.0.0.1:{server.server_port}/v1", flush=True)
server.serve_forever()
