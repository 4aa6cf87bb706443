/** The client over HTTP, where something goes wrong: nothing runs that no claim lets run. */

import assert from "node:assert/strict";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { test, type TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { attached, Client, http, Problem, type Content } from "../src/index.ts";

const CALL = "shop/order-17/refund-1";
const STATE = { call: CALL, status: "running", arguments: '{"order":"A-17"}' };
const ENDED = { ...STATE, status: "returned", result: { text: "it ran", is_error: false, files: [] } };

type Asked = { endpoint: string; body: Record<string, unknown>; token: string };
type Answering = (asked: Asked, answer: ServerResponse, request: IncomingMessage) => void;

/** A client of a server that answers so, and what was asked. */
async function client(context: TestContext, answering: Answering, token = "t") {
  const asked: Asked[] = [];
  const server = createServer(async (request, answer) => {
    let text = "";
    for await (const chunk of request) text += chunk;
    const endpoint = request.url?.split("?")[0]?.split("/").at(-1) ?? "";
    const body = text ? JSON.parse(text) : {};
    asked.push({ endpoint, body, token: request.headers.authorization ?? "" });
    answering(asked.at(-1)!, answer, request);
  });
  await new Promise<void>((ready) => server.listen(0, "127.0.0.1", ready));
  context.after(() => (server.closeAllConnections(), server.close()));
  const { port } = server.address() as AddressInfo;
  return { ayes: new Client(http({ url: `http://127.0.0.1:${port}/`, token })), asked, port };
}

function json(answer: ServerResponse, body: unknown, status = 200): void {
  answer.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
}

test("whatever else answers a claim, nothing runs", { concurrency: true }, async (context) => {
  const answers: Record<string, Answering> = {
    "a page": (_, answer) => void answer.writeHead(200).end("<h1>Welcome</h1>"),
    "a proxy's 502": (_, answer) => void answer.writeHead(502).end("<h1>Bad Gateway</h1>"),
    "a proxy's 504 in JSON": (_, answer) => json(answer, { error: "timeout" }, 504),
    "a proxy's 403 in JSON": (_, answer) => json(answer, { type: 7, status: 200 }, 403),
    "a redirect": ({ endpoint }, answer) =>
      endpoint === "elsewhere"
        ? json(answer, STATE)
        : void answer.writeHead(302, { location: "/elsewhere" }).end(),
    "an empty object": (_, answer) => json(answer, {}),
    "null": (_, answer) => json(answer, null),
    "a list": (_, answer) => json(answer, [STATE]),
    "a text": (_, answer) => json(answer, "running"),
    "nothing": (_, answer) => void answer.writeHead(204).end(),
    "another call": (_, answer) => json(answer, { ...STATE, call: "shop/order-18/refund-1" }),
    "no arguments": (_, answer) => json(answer, { call: CALL, status: "running" }),
    "a call that only is approved": (_, answer) => json(answer, { ...STATE, status: "approved" }),
    "half of it": (_, answer) => {
      answer.writeHead(200, { "content-length": "1000" }).write(JSON.stringify(STATE).slice(0, 20));
      setTimeout(() => answer.destroy(), 10);
    },
  };
  const cases = Object.entries(answers).map(([name, answering]) =>
    context.test(name, async (each) => {
      const { ayes, asked } = await client(each, answering);
      let ran = false;
      await assert.rejects(ayes.run(CALL, () => (ran = true)), Problem);
      assert.equal(ran, false);
      assert.equal(new Set(asked.map(({ body }) => body["claim"])).size, 1);
      assert.deepEqual(new Set(asked.map(({ endpoint }) => endpoint)), new Set(["claim"]));
    }),
  );
  await Promise.all(cases);
});

test("an answer that is lost is asked for again, and the tool runs once", async (context) => {
  const lost = new Set<string>();
  const { ayes, asked } = await client(context, ({ endpoint }, answer, request) => {
    if (!lost.has(endpoint)) return lost.add(endpoint), request.socket.destroy();
    return json(answer, endpoint === "claim" ? STATE : ENDED);
  });
  const ran: string[] = [];
  const ended = await ayes.run(CALL, (args) => (ran.push(args), "it ran"));
  assert.deepEqual([ran, ended.result?.text], [[STATE.arguments], "it ran"]);
  const [claim, again, finish, finished] = asked;
  assert.deepEqual([claim, finish], [again, finished]);
  assert.deepEqual(finish?.body, { output: "it ran" });
});

test("the claim is renewed while the tool runs, and a renewal that fails breaks nothing", async (context) => {
  const { ayes, asked } = await client(context, ({ endpoint }, answer, request) => {
    if (endpoint === "renew") return asked.length % 2 ? request.socket.destroy() : json(answer, {}, 409);
    return json(answer, endpoint === "claim" ? STATE : ENDED);
  });
  const renewals = () => asked.filter(({ endpoint }) => endpoint === "renew");
  const tool = async () => {
    while (renewals().length < 4) await sleep(10);
  };
  assert.equal((await ayes.run(CALL, tool, { lease_s: 0.15 })).status, "returned");
  assert.equal(asked[0]?.body["lease_s"], 0.15);
  assert.ok(renewals().every(({ body }) => body["claim"] === asked[0]?.body["claim"]));
  await sleep(200); // one may be on its way
  const count = asked.length;
  await sleep(200);
  assert.equal(asked.length, count, "it goes on after the end");
});

test("a lease is a number of seconds over 0", async (context) => {
  const { ayes, asked } = await client(context, (_, answer) => json(answer, STATE));
  for (const lease_s of [0, -1, NaN]) {
    await assert.rejects(ayes.run(CALL, () => 1, { lease_s }), { kind: "BadInput" });
  }
  assert.deepEqual(asked, []);
});

test("without a lease given it is that of the Python client", async (context) => {
  const { ayes, asked } = await client(context, ({ endpoint }, answer) =>
    json(answer, endpoint === "claim" ? STATE : ENDED),
  );
  await ayes.run(CALL, () => 1);
  assert.equal(asked[0]?.body["lease_s"], 30);
});

test("a tool whose output cannot be recorded has run", async (context) => {
  for (const [status, detail] of [[413, "It is too long."], [422, "The file has no bytes."]] as const) {
    const { ayes, asked } = await client(context, ({ endpoint, body }, answer) => {
      if (endpoint === "claim") return json(answer, STATE);
      if (String(body["output"]).startsWith("The tool ran")) return json(answer, ENDED);
      return json(answer, { type: "urn:ayes:error:BadInput", status, detail }, status);
    });
    assert.equal((await ayes.run(CALL, () => "x".repeat(600_000))).status, "returned");
    const output = `The tool ran, but its output cannot be recorded: ${detail}`;
    assert.deepEqual(asked.at(-1)?.body, { output });
  }
  const cycle: unknown[] = [];
  cycle.push(cycle);
  const throws = { toJSON: () => assert.fail("not now") };
  for (const output of [cycle, { id: 9007199254740993n }, throws]) {
    const { ayes, asked } = await client(context, ({ endpoint }, answer) =>
      json(answer, endpoint === "claim" ? STATE : ENDED),
    );
    await ayes.run(CALL, () => output);
    assert.match(String(asked.at(-1)?.body["output"]), /^The tool ran, but its output cannot be recorded: /);
  }
});

test("texts and files are recorded as such, anything else as JSON", async (context) => {
  const { ayes, asked } = await client(context, ({ endpoint }, answer) =>
    json(answer, endpoint === "claim" ? STATE : ENDED),
  );
  const note = attached(Buffer.from("hello"), "text/plain", "note.txt");
  assert.deepEqual(note.source, { kept: "inline", data: "aGVsbG8=" });
  const parts: Content = [{ part: "text", text: "See the note." }, note];
  for (const [output, recorded] of [
    [parts, parts],
    [[], "[]"],
    [[{ part: "text", text: "a" }, 5], '[{"part":"text","text":"a"},5]'],
    [{ part: "text", text: "a" }, '{"part":"text","text":"a"}'],
    [null, "null"],
    [undefined, "null"],
  ]) {
    await ayes.run(CALL, () => output);
    assert.deepEqual(asked.at(-1)?.body["output"], recorded);
  }
});

test("an abort ends the wait for a decision at once", async (context) => {
  for (const answering of [() => {}, (_: Asked, answer: ServerResponse) => json(answer, {}, 503)]) {
    const { ayes } = await client(context, answering);
    const stop = new AbortController();
    setTimeout(() => stop.abort(new Error("the user left")), 100);
    const begun = performance.now();
    await assert.rejects(ayes.decision(CALL, { signal: stop.signal }), /the user left/);
    assert.ok(performance.now() - begun < 10_000);
  }
});

test("a token may end with a newline, and one with other characters is not shown", async (context) => {
  const { ayes, asked } = await client(context, (_, answer) => json(answer, STATE), " secret \n");
  await ayes.show(CALL);
  assert.equal(asked[0]?.token, "Bearer secret");
  for (const token of ["sec\nret", "", " ", "sécret"]) {
    assert.throws(
      () => http({ url: "http://127.0.0.1", token }),
      (problem: Error) => problem instanceof Problem && !/s.cret|ret/.test(problem.message),
    );
  }
});
