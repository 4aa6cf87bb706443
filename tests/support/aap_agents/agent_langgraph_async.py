"""A LangChain agent in asynchronous mode: its run ends at a call that waits, a webhook wakes it.

Its registration is on disk beside its checkpoints, so that it is woken after it was killed too.
"""

import asyncio
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from agent_langgraph import Scripted
from agentapprovalprotocol import AsyncClient, Receiver
from agentapprovalprotocol.langgraph import ApprovalMiddleware, resumer
from common import DESCRIPTION, TOOL, provider, refund, serve
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver

STATE = Path(os.environ["STATE"])
REGISTRATION = STATE / "registration.json"
LOOP = asyncio.new_event_loop()
AGENT: list[Any] = []


async def wake(handle: Any, request: Any) -> None:
    """Resume the run that waits, once the agent is made."""
    while not AGENT:  # noqa: ASYNC110 - another thread makes it
        await asyncio.sleep(0.1)
    await resumer(AGENT[0])(handle, request)


RESUMERS = {"langgraph": wake}


def done(coroutine: Any) -> Any:
    """Wait for a coroutine in the loop of the receiver."""
    return asyncio.run_coroutine_threadsafe(coroutine, LOOP).result()


def served(receiver: Receiver, port: int) -> int:
    """Serve the receiver, on the port of the last time; returns the port."""

    class Events(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status, content = done(receiver.handle(dict(self.headers), body))
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Events)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def registered() -> tuple[str, str]:
    """The provider, and the token with which this agent asks it."""
    url, provisioner = provider()
    if REGISTRATION.exists():
        known = json.loads(REGISTRATION.read_text())
        kept = {key: known[key] for key in ("secret", "registration_id", "instance_id")}
        client = AsyncClient(url, known["token"])
        served(Receiver(resumers=RESUMERS, client=client, **kept), known["port"])
        return url, known["token"]
    receiver = Receiver(resumers=RESUMERS)
    port = served(receiver, 0)
    made = done(
        receiver.provision(
            provider_url=url,
            provisioner_token=provisioner,
            url=f"http://127.0.0.1:{port}/",
            instance_name="desk-bot",
        )
    )
    known = {"token": made.token, "secret": made.secret, "port": port}
    known |= {"registration_id": made.registration_id, "instance_id": made.instance_id}
    REGISTRATION.write_text(json.dumps(known))
    return url, made.token


def main() -> None:
    threading.Thread(target=LOOP.run_forever, daemon=True).start()
    url, token = registered()
    with SqliteSaver.from_conn_string(str(STATE / "langgraph.sqlite")) as saver:
        approvals = ApprovalMiddleware(url, token, mode="async")
        paying = tool(TOOL, description=DESCRIPTION)(refund)
        agent = create_agent(Scripted(), [paying], middleware=[approvals], checkpointer=saver)

        AGENT.append(agent)

        def handle(order: str) -> str:
            config: Any = {"configurable": {"thread_id": order}}
            asked = {"messages": [HumanMessage(order)]}
            result = agent.invoke(asked, config, durability="sync")
            return "paused" if "__interrupt__" in result else str(result["messages"][-1].content)

        serve(handle)


main()
