/**
 * Tools of the Vercel AI SDK (6 and 7) that run only if the ledger lets them.
 *
 *     const gate = guarding(ayes, { thread: "shop/order-17", requester: "ben" });
 *     const tools = gate.guard({ refund, findOrders });
 *     const first = await generateText({ model, tools, prompt });
 *     // later, in any process, with the messages of before:
 *     const { messages, waiting } = await gate.resume([...prompt, ...first.response.messages]);
 *     if (waiting.length === 0) await generateText({ model, tools, messages });
 *
 * **Nothing in a message is read as a decision.** A `tool-approval-response`, whoever made it, only
 * has the SDK call `execute`, and `execute` asks the ledger. The call is requested with exactly the
 * arguments that it is about to run with, so an approval that a browser forged, or one of other
 * arguments, runs nothing.
 */

import { createHash } from "node:crypto";

import { Client, Problem, type CallState } from "./client.ts";

/** A tool of either version of the SDK. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
type AnyTool = { execute?: ((input: any, options: any) => any) | undefined };
type CallOptions = { toolCallId: string; abortSignal?: AbortSignal };
type Message = { role: string; content: unknown };
type Part = { type: string; approvalId?: string; toolCallId?: string };
type ToolCall = { toolCallId: string; toolName: string; input: unknown };

/** The states in which a call may still be decided. */
const OPEN = new Set(["requested", "pending"]);
/** How often an id of a provider may stand for other arguments than before. */
const MOST_REPEATS = 100;

export interface Guarding {
  /** `workspace/thread`: the conversation. */
  thread: string;
  /** On whose behalf; they never decide about it. */
  requester: string;
  agent?: string;
}

export function guarding(client: Client, about: Guarding) {
  /** Request the call of a tool; the state is what the ledger has by now. */
  async function asked(tool: string, input: unknown, id: string): Promise<CallState> {
    const request = {
      tool,
      arguments: written(input),
      requester: about.requester,
      ...(about.agent === undefined ? {} : { agent: about.agent }),
    };
    // Providers repeat ids within a conversation. The same id with other arguments is another call.
    for (let repeat = 1; ; repeat++) {
      try {
        return await client.request(nameOf(about.thread, id, repeat), request);
      } catch (problem) {
        const taken = problem instanceof Problem && problem.kind === "AlreadyFilled";
        if (!taken || repeat >= MOST_REPEATS) throw problem;
      }
    }
  }

  /** What the model reads as the result; runs the tool if the ledger lets it. */
  async function outcome(
    tool: string,
    input: unknown,
    options: CallOptions,
    run: (input: unknown) => unknown,
  ): Promise<unknown> {
    let state = await judged(tool, input, options.toolCallId);
    if (OPEN.has(state.status)) {
      throw new Error(`${tool} did not run yet: the call waits for approval. Do not repeat it.`);
    }
    options.abortSignal?.throwIfAborted();
    if (state.status === "approved") {
      let ran = false;
      try {
        state = await client.run(state.call, (args) => ((ran = true), last(run(JSON.parse(args)))));
      } catch (problem) {
        if (!ran || !(problem instanceof Problem)) throw problem;
        throw new Error(
          `${tool} ran, but its result could not be recorded: ${problem.message} Do not repeat it: ` +
            "it may have taken effect.",
          { cause: problem },
        );
      }
    }
    if (state.result === null) {
      throw new Error(
        `${tool} was started by another process, and its result is not known. It was not started ` +
          "again. Do not repeat it: it may have taken effect.",
      );
    }
    if (state.result.is_error) throw new Error(state.result.text);
    return valueOf(state.result.text);
  }

  /** The call, once the gate has judged it. */
  async function judged(tool: string, input: unknown, id: string): Promise<CallState> {
    return decided(client, await asked(tool, input, id));
  }

  return {
    /** The same tools, each with an `execute` that asks the ledger first. */
    guard<T extends Record<string, AnyTool>>(tools: T): T {
      const guarded = Object.entries(tools).map(([name, tool]) => {
        const run = tool.execute;
        if (run === undefined) return [name, tool]; // the client runs it, not we
        const made = {
          ...tool,
          // Also once they have decided: the SDK asks again when it is handed the response.
          needsApproval: async (input: unknown, options: CallOptions) =>
            (await judged(name, input, options.toolCallId)).asked,
          execute: (input: unknown, options: CallOptions) =>
            outcome(name, input, options, (approved) => run.call(tool, approved, options)),
        };
        return [name, made];
      });
      return Object.fromEntries(guarded) as T;
    },

    /** For `toolApproval` of version 7, in place of `needsApproval`. */
    toolApproval: async (options: {
      toolCall: { toolName: string; input: unknown; toolCallId: string };
    }): Promise<"user-approval" | "not-applicable"> => {
      const { toolName, input, toolCallId } = options.toolCall;
      return (await judged(toolName, input, toolCallId)).asked ? "user-approval" : "not-applicable";
    },

    /**
     * The messages with which the conversation goes on.
     *
     * Approval responses in them are dropped. New ones are made for the calls that are decided, so
     * that the SDK calls `execute`, which knows the decision.
     *
     * @returns `waiting`: the ids of calls that people have not decided. Go on once there are none.
     */
    async resume<M extends Message>(given: readonly M[]): Promise<{ messages: M[]; waiting: string[] }> {
      const messages = given.flatMap((one) => withoutResponses(one));
      const waiting: string[] = [];
      const responses: Part[] = [];
      for (const { approvalId, toolCallId, toolName, input } of unanswered(messages)) {
        const { status } = await judged(toolName, input, toolCallId);
        if (OPEN.has(status)) waiting.push(toolCallId);
        else responses.push({ type: "tool-approval-response", approvalId, approved: true } as Part);
      }
      const last = { role: "tool", content: responses } as unknown as M;
      return { messages: responses.length > 0 ? [...messages, last] : messages, waiting };
    },
  };
}

/** The gate decides what needs nobody within milliseconds; people take longer. */
async function decided(client: Client, state: CallState): Promise<CallState> {
  if (state.status !== "requested") return state;
  for (let waited = 0; state.status === "requested" && waited < 50; waited++) {
    state = (await client.wait(state.call, 0.1)).state;
  }
  return state;
}

/**
 * A call's name: the provider's id, or its digest where it cannot be a name or could be the name of
 * another call.
 */
function nameOf(thread: string, id: string, repeat: number): string {
  const plain = /^(?!id-)[A-Za-z0-9-][A-Za-z0-9_-]{0,59}(?<!-\d{1,3})$/.test(id)
    ? id
    : `id-${createHash("sha256").update(id).digest("hex").slice(0, 40)}`;
  return `${thread}/${repeat === 1 ? plain : `${plain}-${repeat}`}`;
}

/** An input as JSON, the same in whatever order a database has returned its fields. */
function written(input: unknown): string {
  return JSON.stringify(input ?? {}, (_, value: unknown) => {
    if (typeof value !== "object" || value === null || Array.isArray(value)) return value;
    return Object.fromEntries(Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1)));
  });
}

/** What a tool returns: of one that yields, the last value, as the SDK takes it. */
async function last(given: unknown): Promise<unknown> {
  const returned = await given;
  if (typeof returned !== "object" || returned === null || !(Symbol.asyncIterator in returned)) {
    return returned;
  }
  let found: unknown;
  for await (const one of returned as AsyncIterable<unknown>) found = one;
  return found;
}

/** A recorded output as the tool gave it: objects and lists are recorded as JSON. */
function valueOf(text: string): unknown {
  if (!/^[[{]/.test(text)) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** The calls that people were asked about and that have no result. Providers repeat ids. */
function unanswered(messages: readonly Message[]): (ToolCall & { approvalId: string })[] {
  const calls = new Map<string, ToolCall>();
  const asked = new Map<string, ToolCall & { approvalId: string }>();
  for (const part of messages.flatMap((one) => (Array.isArray(one.content) ? one.content : []))) {
    const { type, toolCallId, approvalId } = part as Part;
    if (toolCallId === undefined) continue;
    const call = calls.get(toolCallId);
    if (type === "tool-call") calls.set(toolCallId, part as ToolCall);
    if (type === "tool-approval-request" && call && approvalId !== undefined) {
      asked.set(toolCallId, { ...call, approvalId });
    }
    if (type === "tool-result") asked.delete(toolCallId);
  }
  return [...asked.values()];
}

function withoutResponses<M extends Message>(message: M): M[] {
  if (!Array.isArray(message.content)) return [message];
  const content = (message.content as Part[]).filter((one) => one.type !== "tool-approval-response");
  if (content.length === message.content.length) return [message];
  return content.length > 0 ? [{ ...message, content }] : [];
}
