/**
 * Waits over NATS that are aborted in their midst, and a run whose claim nobody answers; prints a
 * line of JSON: what each said, and how long it took in milliseconds.
 *
 *     node aborted.ts shop/order-17/refund-1      with NATS_URL and NATS_PASSWORD
 */

import { Client } from "../src/index.ts";
import { nats } from "../src/nats.ts";

const [call = ""] = process.argv.slice(2);
const { NATS_URL: servers = "", NATS_PASSWORD: password = "" } = process.env;
const ayes = new Client(await nats({ servers, role: "service", name: "billing", password }));

async function aborted(waits: (signal: AbortSignal) => Promise<unknown>, after_ms: number) {
  const stop = new AbortController();
  setTimeout(() => stop.abort(new Error("the user left")), after_ms);
  const begun = performance.now();
  const said = await waits(stop.signal).then(JSON.stringify, String);
  return { said, took_ms: performance.now() - begun };
}

const never = AbortSignal.abort(new Error("the user left"));
let ran = false;
const run = () => ayes.run(call, () => (ran = true), { signal: never });
const found = [
  await aborted((signal) => ayes.wait(call, 60, signal), 300),
  await aborted((signal) => ayes.decision(call, { signal }), 300),
  await aborted(run, 0),
];
// The connection is used further, and nothing keeps the process once it is closed.
const { state } = await ayes.show(call);
await ayes.close();
console.log(JSON.stringify({ found, ran, status: state.status }));
