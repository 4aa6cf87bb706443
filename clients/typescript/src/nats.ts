/** Requests over NATS (docs/nats.md), with the login of a role. */

import { connect, type ConnectionOptions, type NatsConnection } from "@nats-io/transport-node";

import { Problem, type Transport } from "./client.ts";

/** Longer than the ledger holds a request. */
const PATIENCE_MS = 75_000;

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
  let connection: NatsConnection;
  try {
    connection = await connect({
      ...options.nats,
      servers: options.servers,
      user: login,
      pass: options.password,
      inboxPrefix: `_INBOX.${login}`,
    });
  } catch (problem) {
    throw Problem.away(problem);
  }
  return {
    async ask(endpoint, fields) {
      const subject = `approvals.${options.role}.${options.name}.${endpoint}`;
      const given = Object.fromEntries(Object.entries(fields).filter(([, one]) => one !== undefined));
      let answer;
      try {
        answer = await connection.request(subject, JSON.stringify(given), { timeout: PATIENCE_MS });
      } catch (problem) {
        throw Problem.away(problem);
      }
      const failed = answer.headers?.get("Nats-Service-Error-Code");
      if (failed) throw Problem.of(body(answer), Number(failed));
      return answer.json();
    },
    close: () => connection.close(),
  };
}

/** The problem in the body of an error; undefined if there is none. */
function body(answer: { json(): unknown }): unknown {
  try {
    return answer.json();
  } catch {
    return undefined;
  }
}
