/** How long a transport waits for an answer. */

import type { Endpoint, Fields } from "./client.ts";

/** Those of a process that holds a claim, which are sent again before its lease has ended. */
const IN_LEASE: ReadonlySet<Endpoint> = new Set<Endpoint>(["claim", "renew", "finish"]);

/**
 * In milliseconds, and longer than the ledger takes. An answer may be lost although the connection
 * is not, as when the console's process dies.
 */
export function patienceOf(endpoint: Endpoint, fields: Fields): number {
  if (endpoint === "wait") return (Number(fields["timeout_s"] ?? 0) + 15) * 1000;
  return IN_LEASE.has(endpoint) ? 20_000 : 75_000;
}
