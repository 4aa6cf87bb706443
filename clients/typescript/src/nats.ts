/** Requests over NATS (docs/nats.md), with the login of a role. */

import { randomUUID } from "node:crypto";

import { connect, type ConnectionOptions, type NatsConnection } from "@nats-io/transport-node";

import { Problem, type Transport } from "./client.ts";
import { patienceOf } from "./patience.ts";

/**
 * @param options.name the reviewer, or the author of what a service records.
 * @param options.nats what the library of NATS takes besides: TLS, reconnects.
 */
export async function nats(options: {
  servers: string | string[];
  role: "service" | "reviewer" | "operator" | "observer";
  name: string;
  password: string;
  nats?: ConnectionOptions;
}): Promise<Transport> {
  const login = options.role === "reviewer" ? `reviewer-${options.name}` : options.role;
  // An inbox that no other program with this login may hear: the broker reads its token in the name.
  const inbox = randomUUID();
  let connection: NatsConnection;
  try {
    connection = await connect({
      maxReconnectAttempts: -1, // however long the broker is away
      ...options.nats,
      servers: options.servers,
      user: login,
      pass: options.password,
      name: `${options.nats?.name ?? "ayes-client"} inbox=${inbox}`,
      inboxPrefix: `_INBOX.${login}.${inbox}`,
    });
  } catch (problem) {
    throw Problem.away(problem);
  }
  // What was asked before the connection was lost, or while it was, is never answered.
  let lost = new AbortController();
  void (async () => {
    for await (const { type } of connection.status()) {
      if (type !== "disconnect" && type !== "reconnect") continue;
      lost.abort(new Error("the connection was lost"));
      lost = new AbortController();
    }
  })();
  return {
    async ask(endpoint, fields, aborted) {
      aborted?.throwIfAborted();
      const subject = `approvals.${options.role}.${options.name}.${endpoint}`;
      const given = Object.fromEntries(Object.entries(fields).filter(([, one]) => one !== undefined));
      let answer;
      try {
        const timeout = patienceOf(endpoint, fields);
        const asked = connection.request(subject, JSON.stringify(given), { timeout });
        answer = await unless(AbortSignal.any([lost.signal, ...(aborted ? [aborted] : [])]), asked);
      } catch (problem) {
        aborted?.throwIfAborted();
        throw Problem.away(problem);
      }
      const failed = answer.headers?.get("Nats-Service-Error-Code");
      if (failed) throw Problem.of(body(answer), Number(failed));
      return body(answer);
    },
    close: () => connection.close(),
  };
}

/** What was asked for, or an error as soon as it is aborted. */
async function unless<T>(aborted: AbortSignal, asked: Promise<T>): Promise<T> {
  let abort = () => {};
  const ends = new Promise<never>((_, reject) => {
    abort = () => reject(aborted.reason);
    if (aborted.aborted) abort();
    aborted.addEventListener("abort", abort);
  });
  try {
    return await Promise.race([asked, ends]);
  } finally {
    aborted.removeEventListener("abort", abort);
  }
}

/** The body of an answer; undefined if it is not JSON. */
function body(answer: { json(): unknown }): unknown {
  try {
    return answer.json();
  } catch {
    return undefined;
  }
}
