/** A model that wants one refund, and then says what came of it. */

import { MockLanguageModelV3 } from "ai/test";

const usage = {
  inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 1, text: 1, reasoning: 0 },
};

export const scripted = new MockLanguageModelV3({
  doGenerate: async ({ prompt }) => {
    const last = prompt.at(-1);
    if (last?.role === "tool") {
      const said = JSON.stringify(last.content);
      return {
        content: [{ type: "text", text: `It said: ${said}` }],
        finishReason: { unified: "stop", raw: undefined },
        usage,
        warnings: [],
      };
    }
    return {
      content: [
        {
          type: "tool-call",
          toolCallId: "call_1",
          toolName: "refund",
          input: JSON.stringify({ order: "A-17", amount: 480 }),
        },
      ],
      finishReason: { unified: "tool-calls", raw: undefined },
      usage,
      warnings: [],
    };
  },
});
