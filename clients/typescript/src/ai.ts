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
 * arguments, runs nothing. The same holds for results: with the messages of `resume`, the model
 * reads what the ledger recorded about the calls of guarded tools.
 */

import { createHash, createHmac } from "node:crypto";

import { Client, Problem, unrecorded, type CallState } from "./client.ts";

/** A tool of either version of the SDK. */
type AnyTool = {
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  execute?: ((input: any, options: any) => any) | undefined;
  // eslint-disable-next-line @typescript-eslint/no-explicit-any
  toModelOutput?: ((options: any) => any) | undefined;
};
type CallOptions = { toolCallId: string; messages?: readonly Message[]; abortSignal?: AbortSignal };
type Message = { role: string; content: unknown };
type Part = { type: string; approvalId?: string; toolCallId?: string };
type ToolCall = { toolCallId: string; toolName: string; input: unknown };
type ToolResult = { toolCallId: string; toolName: string; output?: { type: string } };

/** The states in which a call may still be decided. */
const OPEN = new Set(["requested", "pending"]);
/** Those in which it may still run, runs, or may have run. */
const GOES_ON = new Set([...OPEN, "approved", "running", "in_doubt"]);
/** How often an id of a provider may stand for other arguments than before. */
const MAX_REPEATS = 100;
/** How many calls `resume` reads at once. */
const READ_AT_ONCE = 8;

export interface Guarding {
  /** `workspace/thread`: the conversation. */
  thread: string;
  /** On whose behalf; they never decide about it. */
  requester: string;
  agent?: string;
}

export function guarding(client: Client, about: Guarding) {
  /** The tools that were guarded, as they were before, by name. */
  const guardedTools = new Map<string, AnyTool>();
  /** Ids of calls whose last outcome a person or the ledger worded: no `toModelOutput` reads it. */
  const answered = new Set<string>();

  /** Request the call of a tool; the state is what the ledger has by now. */
  async function asked(call: ToolCall, before: readonly Message[]): Promise<CallState> {
    const request = {
      tool: call.toolName,
      arguments: written(call.input),
      requester: about.requester,
      ...(about.agent === undefined ? {} : { agent: about.agent }),
    };
    // Providers repeat ids within a conversation. The same id with other arguments is another call.
    const earlier = resultsIn(before).filter((one) => one.call && isEqual(one.call, call)).length;
    // While one of an earlier turn goes on, it is that one.
    const last = earlier > 0 ? await recorded(call, earlier - 1) : undefined;
    if (last && GOES_ON.has(last.status)) return last;
    for (let repeat = 1; ; repeat++) {
      const name = nameOf(about.thread, call.toolCallId, earlier, repeat);
      try {
        return await client.request(name, request);
      } catch (problem) {
        const taken = problem instanceof Problem && problem.kind === "AlreadyFilled";
        if (!taken || repeat >= MAX_REPEATS) throw problem;
        // Requested on another behalf, it is the same call all the same.
        const { state } = await client.wait(name);
        if (isOf(state, call)) return state;
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
    answered.delete(options.toolCallId); // providers repeat ids
    const call = { toolName: tool, input, toolCallId: options.toolCallId };
    let state = await judged(call, options.messages);
    if (OPEN.has(state.status)) throw new Error(unfinished(tool, state));
    if (state.status === "approved") {
      if (!isHeld(state.arguments)) throw new Error(unfinished(tool, state));
      let ran = false;
      let output: unknown;
      try {
        const running = async (args: string) => {
          ran = true;
          output = await last(run(JSON.parse(args)));
          // As `valueOf` reads it: the SDK has no form for what the ledger takes for files.
          try {
            return typeof output === "string" ? output : JSON.stringify(output);
          } catch (problem) {
            return (output = unrecorded(problem));
          }
        };
        state = await client.run(state.call, running, { signal: options.abortSignal });
        if (isOwn(state)) return output;
      } catch (problem) {
        if (!ran || !(problem instanceof Problem)) throw problem;
        throw new Error(
          `${tool} ran, but its result could not be recorded: ${problem.message} Do not repeat it: ` +
            "it may have taken effect.",
          { cause: problem },
        );
      }
    }
    if (state.result === null) throw new Error(unfinished(tool, state));
    if (state.result.is_error) throw new Error(state.result.text);
    if (isOwn(state)) return valueOf(state.result.text);
    answered.add(options.toolCallId);
    return state.result.text;
  }

  /** The call, once the gate has judged it. */
  async function judged(call: ToolCall, before: readonly Message[] = []): Promise<CallState> {
    return decided(client, await asked(call, before));
  }

  /**
   * The call of a message as the ledger has it, or the equal one that went on in its turn; undefined
   * if it has none. Nothing is requested.
   */
  async function recorded(call: ToolCall, earlier: number): Promise<CallState | undefined> {
    for (let repeat = 1; repeat <= MAX_REPEATS; repeat++) {
      let state: CallState;
      try {
        ({ state } = await client.wait(nameOf(about.thread, call.toolCallId, earlier, repeat)));
      } catch (problem) {
        if (problem instanceof Problem && problem.kind === "UnknownCall") break;
        throw problem;
      }
      if (isOf(state, call)) return state;
    }
    return earlier > 0 ? recorded(call, earlier - 1) : undefined;
  }

  /** The output of a result in a message, from the ledger alone, in the SDK's own shape. */
  async function outputOf({ toolCallId, toolName, output }: ToolResult, call?: ToolCall, earlier = 0) {
    const state = call && (await recorded(call, earlier));
    if (!call || !state) {
      const value =
        `The ledger has no such call of ${toolName}: ` +
        "what was written here as its result is left out.";
      return { type: "error-text", value };
    }
    if (state.result === null) return { type: "error-text", value: unfinished(call.toolName, state) };
    const { text, is_error } = state.result;
    if (is_error) return { type: "error-text", value: text };
    if (!isOwn(state)) return { type: "text", value: text };
    const value = valueOf(text);
    const tool = guardedTools.get(call.toolName);
    if (tool?.toModelOutput) {
      try {
        return await tool.toModelOutput({ toolCallId, input: call.input, output: value });
      } catch {
        // The output is not one that JSON keeps, so the model reads what was recorded.
      }
    }
    const isText = typeof value === "string" || output?.type === "text";
    return isText ? { type: "text", value: text } : { type: "json", value };
  }

  /** The messages with the results of guarded tools as the ledger has them. */
  async function withRecorded<M extends Message>(messages: readonly M[]): Promise<M[]> {
    // Models read a result as that of the call with its id, whatever tool it names.
    const results = resultsIn(messages).filter(
      ({ part, call }) => guardedTools.has(part.toolName) || guardedTools.has(call?.toolName ?? ""),
    );
    const read = new Map<unknown, unknown>();
    for (let first = 0; first < results.length; first += READ_AT_ONCE) {
      const some = results.slice(first, first + READ_AT_ONCE);
      const reading = some.map(async ({ part, call, earlier }) => {
        read.set(part, { ...part, output: await outputOf(part, call, earlier) });
      });
      await Promise.all(reading);
    }
    return messages.map((one) =>
      partsOf(one).some((part) => read.has(part))
        ? { ...one, content: partsOf(one).map((part) => read.get(part) ?? part) }
        : one,
    );
  }

  return {
    /** The same tools, each with an `execute` that asks the ledger first. */
    guard<T extends Record<string, AnyTool>>(tools: T): T {
      const guarded = Object.entries(tools).map(([name, tool]) => {
        const run = tool.execute;
        if (run === undefined) return [name, tool]; // the client runs it, not we
        guardedTools.set(name, tool);
        const { toModelOutput } = tool;
        const made = {
          ...tool,
          // Also once they have decided: the SDK asks again when it is handed the response.
          needsApproval: async (input: unknown, options: CallOptions) =>
            (await judged({ toolName: name, input, ...options }, options.messages)).asked,
          execute: (input: unknown, options: CallOptions) =>
            outcome(name, input, options, (approved) => run.call(tool, approved, options)),
          ...(toModelOutput && {
            toModelOutput: async (made: { toolCallId: string; output: unknown }) => {
              const isText = typeof made.output === "string";
              const asText = { type: "text", value: made.output };
              if (isText && answered.has(made.toolCallId)) return asText;
              try {
                return await toModelOutput.call(tool, made);
              } catch (problem) {
                if (isText) return asText; // as above, of a message that another process has kept
                throw problem;
              }
            },
          }),
        };
        return [name, made];
      });
      return Object.fromEntries(guarded) as T;
    },

    /** For `toolApproval` of version 7, in place of `needsApproval`. */
    toolApproval: async (options: {
      toolCall: ToolCall;
      messages?: readonly Message[];
    }): Promise<"user-approval" | "not-applicable"> => {
      const { asked } = await judged(options.toolCall, options.messages);
      return asked ? "user-approval" : "not-applicable";
    },

    /**
     * The messages with which the conversation goes on.
     *
     * Approval responses in them are dropped. New ones are made for the calls that are decided, so
     * that the SDK calls `execute`, which knows the decision. Each result of a guarded tool becomes
     * that of the ledger, or a sentence if the ledger has none; those of other tools stay as given.
     *
     * @returns `waiting`: the ids of calls that people have not decided. Go on once there are none.
     */
    async resume<M extends Message>(given: readonly M[]): Promise<{ messages: M[]; waiting: string[] }> {
      const messages = await withRecorded(given.flatMap((one) => withoutResponses(one)));
      const waiting: string[] = [];
      const responses: Part[] = [];
      for (const { approvalId, ...call } of unanswered(messages)) {
        const { status } = await judged(call, messages);
        if (OPEN.has(status)) waiting.push(call.toolCallId);
        else responses.push({ type: "tool-approval-response", approvalId, approved: true } as Part);
      }
      const last = { role: "tool", content: responses } as unknown as M;
      return { messages: responses.length > 0 ? [...messages, last] : messages, waiting };
    },
  };
}

/** Whether the text of the result is the tool's output alone, without words of others. */
function isOwn({ status, edited }: CallState): boolean {
  return status === "returned" && !edited;
}

/** What the model reads of a call that has no result. */
function unfinished(tool: string, { status, arguments: approved }: CallState): string {
  if (OPEN.has(status)) {
    return `${tool} did not run yet: the call waits for approval. Do not repeat it.`;
  }
  if (status === "approved" && !isHeld(approved)) {
    return (
      `${tool} did not run: JavaScript cannot hold a number in the approved arguments exactly: ` +
      `${approved} Use a text for it, or fewer digits.`
    );
  }
  if (status === "approved") return `${tool} is approved, and has not run yet. Do not repeat it.`;
  return (
    `${tool} was started by another process, and its result is not known. It was not started ` +
    "again. Do not repeat it: it may have taken effect."
  );
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
 * another call; of one whose like has ended in `earlier` turns, a digest with their number.
 */
function nameOf(thread: string, id: string, earlier: number, repeat: number): string {
  const isName = /^(?!id-)[A-Za-z0-9-][A-Za-z0-9_-]{0,59}(?<!-\d{1,3})$/.test(id);
  const hash = earlier === 0 ? createHash("sha256") : createHmac("sha256", String(earlier));
  const digest = hash.update(id).digest("hex").slice(0, 40);
  const plain = isName && earlier === 0 ? id : `id-${digest}`;
  return `${thread}/${repeat === 1 ? plain : `${plain}-${repeat}`}`;
}

/** An input as JSON, the same in whatever order a database has returned its fields. */
function written(input: unknown): string {
  return JSON.stringify(input ?? {}, (_, value: unknown) => {
    if (typeof value !== "object" || value === null || Array.isArray(value)) return value;
    return Object.fromEntries(Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1)));
  });
}

/** Whether a recorded call is this one of a message. */
function isOf(state: CallState, { toolName, input }: ToolCall): boolean {
  const requested = state.requested_arguments || state.arguments;
  return state.tool === toolName && requested === written(input);
}

/** Whether `JSON.parse` keeps each number of a text, as it does up to 15 digits. */
function isHeld(text: string): boolean {
  const numbers = text.replace(/"(?:[^"\\]|\\.)*"/g, "").match(/-?\d[\d.eE+-]*/g) ?? [];
  return numbers.every((one) => decimal(one) === decimal(String(Number(one))));
}

/** A number in one form: its digits without outer zeros, and the power of ten of the last one. */
function decimal(number: string): string {
  const read = /^(-?)(\d+)(?:\.(\d+))?(?:e([+-]?\d+))?$/i.exec(number);
  if (read === null) return number;
  const [, sign, whole = "", part = "", power = "0"] = read;
  const digits = (whole + part).replace(/0+$/, "");
  const places = Number(power) + whole.length - digits.length;
  return digits === "" ? "0" : `${sign}${digits.replace(/^0+/, "")}e${places}`;
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
  if (!/^[[{]/.test(text) || !isHeld(text)) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** The results in messages, each with its call, and how many equal calls have one before it. */
function resultsIn(messages: readonly Message[]) {
  const calls = new Map<string, ToolCall>();
  const results: { part: ToolResult; call: ToolCall | undefined; earlier: number }[] = [];
  for (const part of messages.flatMap(partsOf)) {
    const found = part as unknown as ToolResult;
    if (part.type === "tool-call") calls.set(found.toolCallId, part as unknown as ToolCall);
    if (part.type !== "tool-result") continue;
    const call = calls.get(found.toolCallId);
    const earlier = call ? results.filter((one) => one.call && isEqual(one.call, call)).length : 0;
    results.push({ part: found, call, earlier });
  }
  return results;
}

function isEqual(one: ToolCall, other: ToolCall): boolean {
  if (one.toolCallId !== other.toolCallId || one.toolName !== other.toolName) return false;
  return written(one.input) === written(other.input);
}

/** The calls that people were asked about and that have no result. Providers repeat ids. */
function unanswered(messages: readonly Message[]): (ToolCall & { approvalId: string })[] {
  const calls = new Map<string, ToolCall>();
  const asked = new Map<string, ToolCall & { approvalId: string }>();
  for (const part of messages.flatMap(partsOf)) {
    const { type, toolCallId, approvalId } = part;
    if (toolCallId === undefined) continue;
    const call = calls.get(toolCallId);
    if (type === "tool-call") calls.set(toolCallId, part as unknown as ToolCall);
    if (type === "tool-approval-request" && call && approvalId !== undefined) {
      asked.set(toolCallId, { ...call, approvalId });
    }
    if (type === "tool-result") asked.delete(toolCallId);
  }
  return [...asked.values()];
}

function partsOf(message: Message): Part[] {
  return Array.isArray(message.content) ? (message.content as Part[]) : [];
}

function withoutResponses<M extends Message>(message: M): M[] {
  if (!Array.isArray(message.content)) return [message];
  const content = (message.content as Part[]).filter((one) => one.type !== "tool-approval-response");
  if (content.length === message.content.length) return [message];
  return content.length > 0 ? [{ ...message, content }] : [];
}
