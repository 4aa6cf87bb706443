/**
 * Waits for the decision on a call and runs it, for so many seconds; says on stdout how far it is.
 *
 *     node run.ts shop/order-17/refund-1 0.5 1       the tool takes 0.5 s, the lease is 1 s
 */

import { setTimeout as sleep } from "node:timers/promises";

import { Client, http } from "../src/index.ts";
import { nats } from "../src/nats.ts";

const [call = "", seconds = "0", lease_s = "1"] = process.argv.slice(2);
const { AYES_URL: url, AYES_TOKEN: token = "", NATS_URL: servers = "", NATS_PASSWORD: password = "" } =
  process.env;
const login = { servers, role: "service", name: "billing", password } as const;
const ayes = new Client(
  url === undefined ? await nats({ ...login, nats: { reconnectTimeWait: 50 } }) : http({ url, token }),
);

console.log("it waits");
const { status } = await ayes.decision(call);
console.log(`it is ${status}`);
const tool = async () => {
  console.log("it runs");
  await sleep(Number(seconds) * 1000);
  return "it ran";
};
const ended = await ayes.run(call, tool, { lease_s: Number(lease_s) });
console.log(`it is ${ended.status}: ${ended.result?.text}`);
await ayes.close();
