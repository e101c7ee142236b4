"""A client of the Model Context Protocol asks why the memory of a sample run grows."""

import json
import sys
from pathlib import Path

import anyio
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

TRACES = Path(__file__).parents[1] / "sample_traces"


async def ask() -> None:
    """Start the server, list its tools, and ask one of them."""
    command = ["-m", "vramscope", "mcp", str(TRACES)]
    server = StdioServerParameters(command=sys.executable, args=command)
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        print(*(tool.name for tool in (await session.list_tools()).tools))
        answer = await session.call_tool("leaks", {"path": "gan-retain-graph"})
        (finding, *_) = json.loads(answer.content[0].text)["findings"]
        print(finding["cause"], finding["where"]["line"], finding["holder"])


anyio.run(ask)
