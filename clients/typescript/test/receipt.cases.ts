/* Checks receipts, each with the keys that its reader trusts: prints what came of each.
 *
 *     node receipt.cases.ts CASES
 */
import { readFileSync } from "node:fs";
import { check, Refused, type Trust } from "../src/receipt.ts";

interface Case {
  readonly receipt: string;
  readonly trust: Trust;
}

/** Why it is refused, or why each vote is not proved, by person. */
async function result({ receipt, trust }: Case): Promise<string | Record<string, string>> {
  try {
    const { votes } = await check(new TextEncoder().encode(receipt), trust);
    return Object.fromEntries(votes.map((one) => [one.person, one.problem]));
  } catch (problem) {
    if (!(problem instanceof Refused)) throw problem;
    return problem.message;
  }
}

const cases = JSON.parse(readFileSync(process.argv[2]!, "utf8")) as Case[];
console.log(JSON.stringify(await Promise.all(cases.map(result))));
