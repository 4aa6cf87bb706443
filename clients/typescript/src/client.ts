/**
 * A client of the ledger: request a call, wait until people have decided, claim it, run it, record
 * how it ended; and vote.
 *
 *     const ayes = new Client(http({ url: "http://127.0.0.1:8420", token }));
 *     await ayes.request(call, { tool: "refund", arguments: '{"order":"A-17"}', requester: "ben" });
 *     if ((await ayes.decision(call)).status === "approved") await ayes.run(call, refund);
 *
 * The rules are those of docs/api.md. Every operation may be repeated: after an error of which
 * `retryable` is true, do the same again. **Anything uncertain is not a yes:** whatever goes wrong
 * is thrown, and only a claim that succeeded lets a call run.
 */

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

/** How requests reach the ledger. */
export interface Transport {
  /**
   * @param signal ends the wait for the answer; what was asked may be recorded all the same.
   * @throws Problem: the ledger refuses it, or cannot be reached.
   */
  ask(endpoint: Endpoint, fields: Fields, signal?: AbortSignal): Promise<unknown>;
  close(): Promise<void>;
}

export type Fields = Readonly<Record<string, unknown>>;

/** The operations, as docs/nats.md lists them. */
export const ENDPOINTS = {
  request: ["PUT", "/calls/{call}"],
  wait: ["GET", "/calls/{call}/decision"],
  claim: ["POST", "/calls/{call}/claim"],
  renew: ["POST", "/calls/{call}/renew"],
  finish: ["POST", "/calls/{call}/finish"],
  doubt: ["POST", "/calls/{call}/doubt"],
  withdraw: ["POST", "/calls/{call}/withdraw"],
  decide: ["POST", "/calls/{call}/votes"],
  revoke: ["POST", "/calls/{call}/revoke"],
  reconcile: ["POST", "/calls/{call}/reconcile"],
  pending: ["GET", "/calls"],
  show: ["GET", "/calls/{call}"],
  say: ["POST", "/threads/{thread}/messages"],
  history: ["GET", "/threads/{thread}/history"],
  stops: ["GET", "/stops"],
  stop: ["POST", "/stops"],
  resume: ["POST", "/stops/{stop}/resume"],
} as const;
export type Endpoint = keyof typeof ENDPOINTS;

/** An error of the ledger, as RFC 9457 has it; `kind` is its name in docs/services.md. */
export class Problem extends Error {
  readonly kind: string;
  readonly status: number;

  constructor(kind: string, status: number, detail: string, options?: ErrorOptions) {
    super(detail, options);
    this.name = "Problem";
    this.kind = kind;
    this.status = status;
  }

  /** Whether the same request may succeed later. It may be recorded already; that is safe. */
  get retryable(): boolean {
    return RETRYABLE.has(this.status);
  }

  /** The error in the body of an answer; a proxy before the ledger may have another body. */
  static of(body: unknown, status: number): Problem {
    const { type, detail } = (body ?? {}) as { type?: unknown; detail?: unknown };
    if (typeof type !== "string" || typeof detail !== "string") {
      return new Problem("Unavailable", status, `something else than the ledger answered: ${status}.`);
    }
    return new Problem(type.replace(ERROR, ""), status, detail);
  }

  /** Nobody answered, so nobody knows what became of the request. */
  static away(why: unknown): Problem {
    const said = why instanceof Error ? why.message : String(why);
    return new Problem("Unavailable", 503, `the ledger cannot be reached: ${said}`, { cause: why });
  }
}

const ERROR = "urn:ayes:error:";
/** The ledger is away, or a proxy before it had no answer. */
const RETRYABLE = new Set([408, 502, 503, 504]);

/** A text beside files. */
export interface TextPart {
  part: "text";
  text: string;
}

/** An image or another file. Its bytes are base64; over 64 KiB of them are stored beside the log. */
export interface FilePart {
  part: "media";
  /** Such as `image/png` (RFC 6838). */
  media_type: string;
  source:
    | { kept: "inline"; data: string }
    | { kept: "stored"; digest: string; size: number; place?: string }
    | { kept: "linked"; url: string }
    | { kept: "uploaded"; provider: string; id: string };
  name?: string;
  /** How closely the model looks at an image, in the words of its provider. */
  detail?: string;
}

/** A text, or texts and files in their order. */
export type Content = string | (TextPart | FilePart)[];

/** A file to say or to return. */
export function attached(data: Uint8Array, media_type: string, name = ""): FilePart {
  const source = { kept: "inline", data: Buffer.from(data).toString("base64") } as const;
  return { part: "media", media_type, source, name };
}

function isContent(output: unknown): output is Content {
  if (typeof output === "string") return true;
  const isPart = (one: { part?: unknown } | null) => one?.part === "text" || one?.part === "media";
  return Array.isArray(output) && output.length > 0 && output.every(isPart);
}

/** A file that the ledger has: `GET /threads/{thread}/files/{digest}` of the HTTP API. */
export interface HeldFile {
  /** The SHA-256 of its bytes. */
  digest: string;
  media_type: string;
  name: string;
  /** The number of bytes. */
  size: number;
  /** Where the store of files has it, to refer to it again; empty if it is in the fact. */
  place: string;
}

/** What the model reads as the result of a call. */
export interface ModelResult {
  /** Its files in words. */
  text: string;
  is_error: boolean;
  files: HeldFile[];
}

/** How a call can be undone, as its tool declares it. */
export interface Undoing {
  class: "reads" | "reversible" | "reversible_outside" | "irreversible" | "undeclared";
  /** The tool that undoes it; "": none does, or nobody said. */
  undo: string;
  /** For how long after it returned. */
  undo_within_s: number | null;
}

/** By what a vote counted as that of a member of groups. */
export interface Membership {
  /** Whose vote it is. */
  person: string;
  groups: string[];
  /** Who named the groups, of which account there, and when. */
  issuer: string;
  subject: string;
  read_at: string;
}

/** The state of a call. `arguments` are raw JSON text: those that run, edits included. */
export interface CallState {
  call: string;
  status: string;
  /** The same, but of a call that never ran always why, such as `denied`, and never `refused`. */
  outcome: string;
  tool: string;
  arguments: string;
  digest: string;
  /** Whether it was put to people, whatever came of it. */
  asked: boolean;
  decision: string | null;
  decided_at: string | null;
  voters: string[];
  ground: string;
  reason: string;
  /** By which groups of a provider some of the voters counted. */
  memberships: Membership[];
  edited: boolean;
  /** The arguments as requested, if a reviewer changed them; else "". */
  requested_arguments: string;
  valid_until: string | null;
  /** null: its tool declares nothing of it. */
  undoing: Undoing | null;
  /** Until when it can be undone; null: no end is known, or it has not returned. */
  undo_until: string | null;
  /** Of a call that has ended or will not run. */
  result: ModelResult | null;
}

/** An open approval. A vote must name its digest. */
export interface PendingCall {
  call: string;
  tool: string;
  arguments: string;
  digest: string;
  rule: string;
  reason: string;
  requester: string;
  agent: string;
  voters: string[];
  votes_needed: number;
  undoing: Undoing | null;
  /** What it does in one line, as its tool declares it; "": it declares none. */
  title: string;
}

export interface Request {
  tool: string;
  /** Raw JSON text, as model providers deliver it: the digest is over these bytes. */
  arguments: string;
  /** On whose behalf; they never decide about it. */
  requester?: string;
  agent?: string;
  labels?: Record<string, string>;
  /** How long this side waits for people, in seconds. */
  expires_in_s?: number;
}

export interface Vote {
  verdict: "approve" | "deny" | "answer" | "break_glass";
  /** That of what the reviewer was shown. */
  digest: string;
  reason?: string;
  /** With `approve`: run it with these instead (raw JSON text). */
  arguments?: string;
  /** With `answer`: the text that the model reads in place of the tool's output. */
  answer?: string;
  /** With `answer`: the model reads it as the tool's error. */
  is_error?: boolean;
  /** With `deny` and `answer`: the model is not asked again before a user says something. */
  halt?: boolean;
}

/** How long one request waits for a decision, in seconds; the client asks again. */
const WAIT_S = 20;
/** A claim that `run` has not renewed for so long is in doubt, in seconds: as in Python. */
const LEASE_S = 30;
/** An output over the limit, or with a file that cannot be recorded. */
const UNRECORDABLE = new Set([413, 422]);
/** The pause after the first attempt that failed, in milliseconds; it doubles up to the last. */
const AGAIN_MS = [200, 5_000] as const;
/** For how long `run` claims again while the ledger is away, in milliseconds of pauses. */
const CLAIMS_AGAIN_MS = 6_500;
/** And sends the result again, which is lost otherwise: longer, for a restart of the console. */
const FINISHES_AGAIN_MS = 300_000;

export class Client {
  readonly transport: Transport;

  constructor(transport: Transport) {
    this.transport = transport;
  }

  /** Request a call, named `workspace/thread/call`. The same again changes nothing. */
  request(call: string, request: Request): Promise<CallState> {
    return this.#ask("request", { call, ...request });
  }

  /** The state of a call, once it is decided; at the latest after `timeout_s` seconds (60 at most). */
  async wait(
    call: string,
    timeout_s = 0,
    signal?: AbortSignal,
  ): Promise<{ decided: boolean; state: CallState }> {
    return this.#ask("wait", { call, timeout_s }, signal);
  }

  /** Wait for the decision for as long as it takes, also while the ledger is away. */
  async decision(call: string, options: { signal?: AbortSignal } = {}): Promise<CallState> {
    const { signal } = options;
    let pause: number = AGAIN_MS[0];
    for (;;) {
      signal?.throwIfAborted();
      try {
        const { decided, state } = await this.wait(call, WAIT_S, signal);
        if (decided) return state;
        pause = AGAIN_MS[0];
      } catch (problem) {
        if (!(problem instanceof Problem && problem.retryable)) throw problem;
        await sleep(pause, undefined, signal ? { signal } : {}).catch(() => undefined);
        pause = Math.min(pause * 2, AGAIN_MS[1]);
      }
    }
  }

  /** Claim an approved call, to run it with exactly the `arguments` of the answer. */
  async claim(call: string, claim: string, lease_s = 0): Promise<CallState> {
    const state = await this.#ask<CallState>("claim", { call, claim, lease_s });
    if (state.status !== "running") throw Problem.away(`a claim was answered with ${state.status}`);
    return state;
  }

  /** Renew a claim, so that its lease begins again. */
  renew(call: string, claim: string): Promise<CallState> {
    return this.#ask("renew", { call, claim });
  }

  /** Record how a call that was claimed has ended: with one of the two. */
  finish(call: string, result: { output: Content } | { error: string }): Promise<CallState> {
    return this.#ask("finish", { call, ...result });
  }

  /** Record that nobody knows how a call ended. */
  doubt(call: string, reason = ""): Promise<CallState> {
    return this.#ask("doubt", { call, reason });
  }

  withdraw(call: string, reason = ""): Promise<CallState> {
    return this.#ask("withdraw", { call, reason });
  }

  /** Vote, in the name that the login or token says. */
  decide(call: string, vote: Vote): Promise<CallState> {
    return this.#ask("decide", { call, ...vote });
  }

  /** Take an approval back before the tool runs; with `answer`, answer in its place. */
  revoke(
    call: string,
    what: { reason?: string; answer?: string; is_error?: boolean; halt?: boolean } = {},
  ): Promise<CallState> {
    return this.#ask("revoke", { call, ...what });
  }

  /** A page of the calls that wait for people, the oldest first unless `sort` says otherwise. `q` is
   * what is searched, such as `tool:refund amount>100 is:mine`. */
  pending(
    filter: { workspace?: string; q?: string; sort?: string; after?: string } = {},
  ): Promise<{ calls: PendingCall[]; waiting: number; next: string | null }> {
    return this.#ask("pending", filter);
  }

  /** A call with every fact about it. */
  show(call: string): Promise<{ state: CallState; facts: unknown[] }> {
    return this.#ask("show", { call });
  }

  /** Add a message to a conversation. The same `message` again is recorded once. */
  say(
    thread: string,
    said: { text: Content; message: string; role?: "user" | "system" | "note"; name?: string },
  ): Promise<unknown> {
    return this.#ask("say", { thread, ...said });
  }

  /** A conversation as its model continues it: the messages of a provider's API. */
  history(thread: string, format = "openai-chat"): Promise<{ messages: unknown[] }> {
    return this.#ask("history", { thread, format });
  }

  /**
   * Claim an approved call, run it, and record how it ended.
   *
   * A text that the tool returns is recorded as it is, and so is a list of texts and files
   * (`attached`); anything else as JSON. While the tool runs, the claim is renewed. If this process
   * dies, people see the call in doubt after `lease_s` seconds. If the tool throws, that is recorded
   * as its error, and the state is returned. While the ledger is away, the result is sent again for
   * five minutes. If it cannot be recorded, the `Problem` is thrown: the call is running, and must
   * not be run again.
   *
   * @param options.signal once it is aborted, nothing is begun: a claim that is recorded by then
   *   ends with an error. A tool that runs goes on, and its result is recorded.
   * @throws Problem: the claim failed; nothing has run.
   */
  async run(
    call: string,
    tool: (args: string) => unknown,
    options: { lease_s?: number; signal?: AbortSignal | undefined } = {},
  ): Promise<CallState> {
    const { lease_s = LEASE_S, signal } = options;
    if (!(lease_s > 0)) {
      throw new Problem("BadInput", 422, `lease_s is ${lease_s}: give a number of seconds over 0.`);
    }
    signal?.throwIfAborted();
    const id = randomUUID(); // of this run alone, so it is kept in memory only
    const claimed = await this.#insist(() => this.claim(call, id, lease_s), CLAIMS_AGAIN_MS);
    // Three times in each lease, so that one that fails makes no doubt.
    const renew = () => void this.renew(call, id).catch(() => undefined);
    const renewing = setInterval(renew, (lease_s * 1000) / 3).unref();
    try {
      return await this.#ended(call, claimed.arguments, signal?.aborted ? notBegun : tool);
    } finally {
      clearInterval(renewing);
    }
  }

  /** Run a claimed call, and record how it ended. */
  async #ended(call: string, args: string, tool: (args: string) => unknown): Promise<CallState> {
    let output: unknown;
    let error: string | undefined;
    try {
      output = await tool(args);
    } catch (problem) {
      error = said(problem);
    }
    const result = error === undefined ? { output: recordable(output) } : { error };
    try {
      return await this.#insist(() => this.finish(call, result), FINISHES_AGAIN_MS);
    } catch (problem) {
      if (!(problem instanceof Problem) || !UNRECORDABLE.has(problem.status)) throw problem;
      const words = unrecorded(problem);
      return this.#insist(() => this.finish(call, error ? { error: words } : { output: words }), FINISHES_AGAIN_MS);
    }
  }

  close(): Promise<void> {
    return this.transport.close();
  }

  async #ask<T>(endpoint: Endpoint, fields: Fields, signal?: AbortSignal): Promise<T> {
    const answer = await this.transport.ask(endpoint, fields, signal);
    // Something else may answer with 200, such as a proxy: that is no answer, and never a yes.
    if (!isAbout(answer, fields["call"])) {
      throw Problem.away(`what answered the request ${endpoint} is not the ledger`);
    }
    return answer as T;
  }

  /** Do the same again while the ledger is away, with pauses of `most_ms` in all: see the rules. */
  async #insist<T>(step: () => Promise<T>, most_ms: number): Promise<T> {
    let pause: number = AGAIN_MS[0];
    for (let paused = 0; ; paused += pause, pause = Math.min(pause * 2, AGAIN_MS[1])) {
      try {
        return await step();
      } catch (problem) {
        const retried = problem instanceof Problem && problem.retryable && paused + pause <= most_ms;
        if (!retried) throw problem;
        await sleep(pause);
      }
    }
  }
}

/** What is recorded of a value that a tool returned. */
function recordable(output: unknown): Content {
  try {
    return isContent(output) ? output : (JSON.stringify(output) ?? "null");
  } catch (problem) {
    return unrecorded(problem);
  }
}

/** What is recorded of a tool that ran, and whose output cannot be: it must not look as if it failed. */
export function unrecorded(problem: unknown): string {
  const why = problem instanceof Problem ? problem.message : said(problem);
  return `The tool ran, but its output cannot be recorded: ${why}`;
}

function said(problem: unknown): string {
  return problem instanceof Error ? `${problem.name}: ${problem.message}` : String(problem);
}

function notBegun(): never {
  throw new Error("It was aborted before it began.");
}

/** Whether an answer has the state of this call; of endpoints without one, whether it is an object. */
function isAbout(answer: unknown, call: unknown): boolean {
  if (typeof answer !== "object" || answer === null) return false;
  if (call === undefined) return true;
  const { state = answer as Partial<CallState> } = answer as { state?: Partial<CallState> | null };
  return state?.call === call && typeof state.status === "string" && typeof state.arguments === "string";
}
