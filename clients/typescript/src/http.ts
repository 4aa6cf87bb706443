/** Requests over HTTP, with an API token (`ayes token add NAME --role service`). */

import { ENDPOINTS, Problem, type Fields, type Transport } from "./client.ts";
import { patienceOf } from "./patience.ts";

/** What a token is made of. Errors do not show it, which those of `fetch` would. */
const TOKEN = /^[\x21-\x7e]+$/;

export function http(options: { url: string; token: string }): Transport {
  const base = `${options.url.replace(/\/+$/, "")}/api/v1`;
  const token = options.token.trim();
  if (!TOKEN.test(token)) {
    throw new Problem("BadInput", 422, "the token is empty, or has characters that no token has.");
  }
  const headers = {
    authorization: `Bearer ${token}`,
    "content-type": "application/json",
  };
  return {
    async ask(endpoint, fields, aborted) {
      const [method, template] = ENDPOINTS[endpoint];
      const [path, rest] = filled(template, fields);
      const request =
        method === "GET"
          ? [`${path}?${new URLSearchParams(texts(rest))}`, {}] as const
          : [path, { body: JSON.stringify(rest) }] as const;
      const patience = AbortSignal.timeout(patienceOf(endpoint, fields));
      const signal = AbortSignal.any([patience, ...(aborted ? [aborted] : [])]);
      // The API has no redirects; after one `fetch` would ask for another thing, with GET.
      const redirect = "manual";
      let answer: Response;
      let text: string;
      try {
        answer = await fetch(base + request[0], { method, headers, signal, redirect, ...request[1] });
        text = await answer.text();
      } catch (problem) {
        aborted?.throwIfAborted();
        throw Problem.away(problem);
      }
      const body = parsed(text);
      if (!answer.ok) throw Problem.of(body, answer.status);
      return body;
    },
    async close() {},
  };
}

const FORMS = new Map([
  ["call", "workspace/thread/call"],
  ["thread", "workspace/thread"],
  ["stop", "workspace/giver/name"],
]);

/** The path, with the name of the call, thread or stop in it, and the other fields. */
function filled(template: string, fields: Fields): [string, Fields] {
  const rest = { ...fields };
  const path = template.replace(/\{(\w+)\}/, (_, kind: string) => {
    const parts = String(rest[kind] ?? "").split("/");
    delete rest[kind];
    const form = FORMS.get(kind) ?? "";
    if (parts.length !== form.split("/").length) {
      throw new Problem("BadSlot", 422, `${JSON.stringify(parts.join("/"))} is not of the form ${form}.`);
    }
    return parts.map(encodeURIComponent).join("/");
  });
  return [path, rest];
}

/** undefined if it is not JSON. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function texts(fields: Fields): Record<string, string> {
  const given = Object.entries(fields).filter(([, value]) => value !== undefined);
  return Object.fromEntries(given.map(([key, value]) => [key, String(value)]));
}
