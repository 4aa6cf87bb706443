/**
 * Does what it reads on stdin, a step a line, with the client of this package; tells on stdout what
 * came of it. It knows nothing of the cases and keeps nothing, so it may be killed at any moment.
 *
 *     {"do": "claim", "as": "service:billing", "with": {"call": "shop/t/c", "claim": "..."}}
 *     {"ok": {...}}  or  {"error": "AlreadyFilled", "detail": "..."}
 */

import { createInterface } from "node:readline";

import { Client, http, Problem, type Endpoint } from "../src/index.ts";
import { nats } from "../src/nats.ts";

interface World {
  url?: string;
  tokens?: Record<string, string>;
  servers?: string;
  passwords?: Record<string, string>;
}

const world = JSON.parse(process.env["AYES_CONTRACT"] ?? "{}") as World;
const clients = new Map<string, Promise<Client>>();

function clientOf(actor: string): Promise<Client> {
  const found = clients.get(actor) ?? connected(actor);
  clients.set(actor, found);
  return found;
}

async function connected(actor: string): Promise<Client> {
  const [role, name] = actor.split(":") as ["service" | "reviewer" | "observer", string];
  if (world.url !== undefined) {
    return new Client(http({ url: world.url, token: world.tokens?.[actor] ?? "" }));
  }
  const login = role === "reviewer" ? `reviewer-${name}` : role;
  const password = world.passwords?.[login] ?? "";
  return new Client(await nats({ servers: world.servers ?? "", role, name, password }));
}

async function step(endpoint: Endpoint, actor: string, fields: Record<string, unknown>) {
  const { call, thread, ...rest } = fields as { call: string; thread: string };
  const client = await clientOf(actor);
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  const given = rest as any;
  switch (endpoint) {
    case "request":
      return client.request(call, given);
    case "wait":
      return client.wait(call, given.timeout_s);
    case "claim":
      return client.claim(call, given.claim, given.lease_s);
    case "renew":
      return client.renew(call, given.claim);
    case "finish":
      return client.finish(call, given);
    case "doubt":
      return client.doubt(call, given.reason);
    case "withdraw":
      return client.withdraw(call, given.reason);
    case "decide":
      return client.decide(call, given);
    case "revoke":
      return client.revoke(call, given);
    case "pending":
      return client.pending({ q: `thread:${thread}`, ...given });
    case "show":
      return client.show(call);
    case "say":
      return client.say(thread, given);
    default:
      throw new Error(`no case has ${endpoint}`);
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const { do: endpoint, as: actor, with: fields } = JSON.parse(line);
  let said: object;
  try {
    said = { ok: await step(endpoint, actor, fields) };
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    said = { error: problem.kind, detail: problem.message };
  }
  process.stdout.write(`${JSON.stringify(said)}\n`);
}
process.exit(0);
