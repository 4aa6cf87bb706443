/** Requests over HTTP, with an API token (`ayes token add NAME --role service`). */

import { ENDPOINTS, Problem, type Fields, type Transport } from "./client.ts";

/** Longer than the ledger holds a request. */
const PATIENCE_MS = 75_000;

export function http(options: { url: string; token: string }): Transport {
  const base = `${options.url.replace(/\/+$/, "")}/api/v1`;
  const headers = {
    authorization: `Bearer ${options.token}`,
    "content-type": "application/json",
  };
  return {
    async ask(endpoint, fields) {
      const [method, template] = ENDPOINTS[endpoint];
      const [path, rest] = filled(template, fields);
      const request =
        method === "GET"
          ? [`${path}?${new URLSearchParams(texts(rest))}`, {}] as const
          : [path, { body: JSON.stringify(rest) }] as const;
      const signal = AbortSignal.timeout(PATIENCE_MS);
      let answer: Response;
      let body: unknown;
      try {
        answer = await fetch(base + request[0], { method, headers, signal, ...request[1] });
        body = await answer.json();
      } catch (problem) {
        throw Problem.away(problem);
      }
      if (!answer.ok) throw Problem.of(body, answer.status);
      return body;
    },
    async close() {},
  };
}

/** The path, with the name of the call or thread in it, and the other fields. */
function filled(template: string, fields: Fields): [string, Fields] {
  const rest = { ...fields };
  const path = template.replace(/\{(\w+)\}/, (_, kind: string) => {
    const parts = String(rest[kind] ?? "").split("/");
    delete rest[kind];
    if (parts.length !== (kind === "call" ? 3 : 2)) {
      const form = kind === "call" ? "workspace/thread/call" : "workspace/thread";
      throw new Problem("BadSlot", 422, `${JSON.stringify(parts.join("/"))} is not of the form ${form}.`);
    }
    return parts.map(encodeURIComponent).join("/");
  });
  return [path, rest];
}

function texts(fields: Fields): Record<string, string> {
  const given = Object.entries(fields).filter(([, value]) => value !== undefined);
  return Object.fromEntries(given.map(([key, value]) => [key, String(value)]));
}
