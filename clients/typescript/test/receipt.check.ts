/* Checks a receipt, and each form of it in which one byte is another: prints what was taken.
 *
 *     node receipt.check.ts RECEIPT LOG ROOT…
 */
import { readFileSync } from "node:fs";
import { check, Refused } from "../src/receipt.ts";

const [file, log, ...roots] = process.argv.slice(2) as [string, string, ...string[]];
const bytes = new Uint8Array(readFileSync(file));
const trust = { log, roots };
const { votes, votesNeeded } = await check(bytes, trust);
const taken: number[] = [];
for (let at = 0; at < bytes.length; at++) {
  const changed = bytes.slice();
  changed[at]! ^= 1;
  try {
    await check(changed, trust);
    taken.push(at);
  } catch (problem) {
    if (!(problem instanceof Refused)) throw problem;
  }
}
console.log(JSON.stringify({ votes: votes.map((one) => one.key !== ""), votesNeeded, taken }));
