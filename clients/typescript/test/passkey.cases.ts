/* Judges what passkeys have signed (tests/data/passkeys.json), and each with one bit changed: prints
 * the names of those that were judged wrong.
 *
 *     node passkey.cases.ts VECTORS
 */
import { readFileSync } from "node:fs";
import { flawOf, isTaken, signatureOf } from "../src/receipt.ts";

interface Vector {
  readonly name: string;
  readonly key: string;
  readonly is_key: boolean;
  readonly signature: string;
  readonly taken: boolean;
}

const ORIGINS = ["https://sign.ayes.example"];
const CHALLENGE = Uint8Array.from({ length: 32 }, (_, at) => at);
const vectors = JSON.parse(readFileSync(process.argv[2]!, "utf8")) as Vector[];
const wrong: string[] = [];
for (const { name, key, is_key, signature, taken } of vectors) {
  const [, , rp, ...spki] = key.split("+") as [string, string, string, ...string[]];
  const raw = Uint8Array.from(Buffer.from(spki.join("+"), "base64"));
  const parsed = signatureOf(signature);
  if (isTaken(raw) !== is_key) wrong.push(`${name}: its key`);
  const isSigned = async (parts: readonly Uint8Array<ArrayBuffer>[]) =>
    (await flawOf({ rp, raw }, parts, CHALLENGE, ORIGINS)) === "";
  if ((parsed !== null && (await isSigned(parsed.raw))) !== taken) wrong.push(name);
  if (!taken || !name.endsWith("as asked")) continue;
  for (const [at, part] of parsed!.raw.entries()) {
    for (let bit = 0; bit < 8 * part.length; bit++) {
      const changed = part.slice();
      changed[bit >> 3]! ^= 1 << (bit & 7);
      if (await isSigned(parsed!.raw.with(at, changed))) wrong.push(`${name}: ${at}, bit ${bit}`);
    }
  }
}
console.log(JSON.stringify(wrong));
