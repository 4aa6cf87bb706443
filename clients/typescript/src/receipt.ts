/**
 * Checks a receipt of `ayes prove`: with public keys and nothing else, in a browser or in Node.
 *
 *     const log = "approvals.example.com/4f6b…+1a2b3c4d+AQ…=";
 *     const shown = await check(bytes, { log, roots });
 *
 * It shows which facts are in the log that the key has sealed, and which votes the people's own
 * keys have signed, over exactly this request and question. It does not judge whether these people
 * were asked, whether the policy wanted this question, and how many must answer it: `ayes verify`
 * does, which evaluates policies. Neither shows that nothing else was recorded, such as the end of
 * a key.
 *
 * The forms are those of docs/receipts.md.
 */

/** Whom the reader trusts. */
export interface Trust {
  /** The public key of the log's sealer, as `NAME+ID+KEY`. */
  readonly log: string;
  /** Those of witnesses: each of them must have signed. */
  readonly witnesses?: readonly string[];
  /** Those that say together whose a person's key is, and how many are needed: by default all. */
  readonly roots?: readonly string[];
  readonly rootsNeeded?: number;
  /** Others that say it as well, the confirmers of the trust file, and how many are needed. */
  readonly confirmers?: readonly string[];
  readonly confirmersNeeded?: number;
  /** How many others confirm the key of a person who has lost all of theirs, and how long after the
   * last of them it counts; absent: nobody does. */
  readonly lost?: Lost;
  /** The domain of people's passkeys, and the origins of the pages on which they sign. */
  readonly rp?: string;
  readonly origins?: readonly string[];
}

/** As `[lost]` of the trust file. */
export interface Lost {
  readonly people: number;
  readonly afterS: number;
}

/** A fact of the log; its time in nanoseconds since 1970. */
export interface Fact {
  readonly seq: number;
  readonly time: string;
  readonly subject: string;
  readonly payload: string;
}

export interface ShownVote {
  readonly person: string;
  readonly inPlaceOf: string;
  readonly verdict: string;
  readonly reason: string;
  readonly at: Date;
  /** The id of the key that has signed it; empty: `problem` says why it is not proved. */
  readonly key: string;
  readonly problem: string;
}

/** What a receipt shows. */
export interface Shown {
  readonly call: string;
  readonly tool: string;
  readonly arguments: string;
  readonly requester: string;
  /** The kind of the decision, such as `Approved`, and on which ground; empty if there is none. */
  readonly decision: string;
  readonly ground: string;
  readonly decidedAt: Date | null;
  /** The rule that asked, and how many votes its question asked for; empty and 0 if nobody was. */
  readonly rule: string;
  readonly votesNeeded: number;
  readonly votes: readonly ShownVote[];
  /** The log, and how many of its facts were sealed then. */
  readonly log: string;
  readonly sealed: bigint;
  readonly facts: readonly Fact[];
}

/** The receipt does not show what it says. */
export class Refused extends Error {
  override readonly name = "Refused";
}

/** This browser, or this page, cannot check signatures. */
export class Unable extends Error {
  override readonly name = "Unable";
}

/**
 * Check a receipt, as the bytes of its file.
 *
 * @throws Refused with what is wrong; Unable where Ed25519 is missing.
 */
export async function check(bytes: Uint8Array, trust: Trust): Promise<Shown> {
  if (!globalThis.crypto?.subtle) throw new Unable("This page cannot compute hashes here.");
  const trusted = await trustedOf(trust);
  const receipt = parsed(bytes);
  const log = await verifier(trust.log);
  const [origin, size, root] = await opened(receipt.checkpoint, log);
  for (const one of trust.witnesses ?? [])
    await opened(receipt.checkpoint, await verifier(one, COSIGNATURE));
  const leaves = await included(receipt, size, root);
  const call = await summary(receipt, log, { origin, size, root, leaves });
  return shown(call, receipt.facts, origin, size, trusted);
}

/** Keys that say together whose a key is, by id, and how many of them are needed. */
interface Quorum {
  readonly keys: ReadonlyMap<string, Verifier>;
  readonly needed: number;
}

/** What is asked of people's keys: that any of the quorums has confirmed it, and of passkeys. */
interface Trusted {
  readonly quorums: readonly Quorum[];
  readonly lost: Lost | null;
  readonly rp: string;
  readonly origins: readonly string[];
}

async function trustedOf(trust: Trust): Promise<Trusted> {
  const roots = await quorum(trust.roots, trust.rootsNeeded);
  const confirmers = await quorum(trust.confirmers, trust.confirmersNeeded);
  const [lost, rp, origins] = [trust.lost ?? null, trust.rp ?? "", trust.origins ?? []];
  if (lost) {
    const isCount = Number.isSafeInteger(lost.people) && lost.people >= 2;
    must(isCount, "how many others confirm a key in the place of lost ones is not 2 or more");
    const isTime = Number.isFinite(lost.afterS) && lost.afterS >= 60 && lost.afterS <= 30 * 86_400;
    must(isTime, "the time after which such a key counts is not from 60 seconds to 30 days");
  }
  return { quorums: [roots, confirmers], lost, rp, origins };
}

async function quorum(texts: readonly string[] = [], wanted?: number): Promise<Quorum> {
  const keys = new Map<string, Verifier>();
  for (const one of await Promise.all(texts.map((text) => verifier(text))))
    keys.set(await keyId(one.raw), one);
  const needed = wanted ?? Math.max(1, keys.size);
  const isCount = Number.isSafeInteger(needed) && needed >= 1;
  must(isCount, "how many keys are needed is not a whole number from 1 on");
  must(wanted === undefined || needed <= keys.size, "more keys are needed than are given");
  return { keys, needed };
}

interface Receipt {
  readonly format: string;
  readonly statement: {
    readonly payloadType: string;
    readonly payload: string;
    readonly signatures: readonly { readonly keyid: string; readonly sig: string }[];
  };
  readonly facts: readonly Fact[];
  readonly hashes: readonly string[];
  readonly proofs: readonly (readonly number[])[];
  readonly checkpoint: string;
}

const FORMAT = "ayes receipt 1";
const TYPE = "application/vnd.in-toto+json";

/** The receipt, if it is written in the one way there is. */
function parsed(bytes: Uint8Array): Receipt {
  const text = decoded(bytes);
  let found: Receipt;
  let again: Receipt;
  try {
    found = JSON.parse(text) as Receipt;
    again = {
      format: found.format,
      statement: {
        payloadType: found.statement.payloadType,
        payload: found.statement.payload,
        signatures: found.statement.signatures.map(({ keyid, sig }) => ({ keyid, sig })),
      },
      facts: found.facts.map((one) => {
        const { seq, time, subject, payload } = one;
        return { seq, time, subject, payload };
      }),
      hashes: found.hashes,
      proofs: found.proofs,
      checkpoint: found.checkpoint,
    };
  } catch {
    throw new Refused("This is not a receipt.");
  }
  if (found.format !== FORMAT || `${JSON.stringify(again)}\n` !== text)
    throw new Refused("This is not a receipt in the one form that it has.");
  const texts = found.facts.flatMap((one) => [one.time, one.subject, one.payload]);
  const numbers = [...found.facts.map((one) => one.seq), ...found.proofs.flat()];
  const areTexts = [...texts, ...found.hashes].every((one) => typeof one === "string");
  must(areTexts, "a field is not text");
  const areNumbers = numbers.every((one) => Number.isSafeInteger(one) && one >= 0);
  must(areNumbers, "a number is not a whole number");
  must(typeof found.checkpoint === "string", "there is no checkpoint");
  const subjects = new Set(found.facts.map((one) => one.subject));
  must(subjects.size === found.facts.length, "two of its facts have one subject");
  return found;
}

// ------------------------------------------------------------------------------ the sealed log

interface Verifier {
  readonly name: string;
  readonly id: string;
  /** 1: a log's or a person's; 4: a witness's. */
  readonly kind: number;
  readonly raw: Uint8Array<ArrayBuffer>;
}

const [ED25519, COSIGNATURE] = [1, 4];
/** Name and number of a key; the name without blanks, as both Python and ECMAScript know them. */
const KEY = /^([^\s\x1c-\x1f\x85\ud800-\udfff+]+)\+([0-9a-f]{8})\+(.+)$/u;

/** A public key as c2sp.org/signed-note has it, as `VerifierKey` in ledger/seal.py takes it. */
async function verifier(text: string, kind = ED25519): Promise<Verifier> {
  const [, name = "", id = "", key = ""] = (typeof text === "string" && KEY.exec(text)) || [];
  const raw = base64(key);
  const number = hex(await sha256(join(utf8(`${name}\n`), raw))).slice(0, 8);
  if (id !== number || raw[0] !== kind || !isSound(raw.slice(1)))
    throw new Refused(`${String(text).slice(0, 80)} is not a key.`);
  return { name, id, kind, raw: raw.slice(1) };
}

/** The log, size and root of a checkpoint that the key has signed. */
async function opened(note: string, key: Verifier): Promise<[string, bigint, Uint8Array]> {
  const [text, signatures] = parts(note);
  const [origin, size, root, ...rest] = text.split("\n");
  const isWritten = /^(0|[1-9][0-9]*)$/.test(size ?? "") && rest.length === 1 && rest[0] === "";
  if (origin === undefined || root === undefined || !isWritten || base64(root).length !== 32)
    throw new Refused("Its checkpoint is not one.");
  if (key.kind === ED25519 && origin !== key.name)
    throw new Refused(`It is of the log ${origin}, and not of ${key.name}.`);
  const own = signatures.filter(([name, id]) => name === key.name && id === key.id);
  let isSigned = own.length > 0;
  for (const [, , one] of own) isSigned &&= await signedNote(one, text, key);
  if (!isSigned) throw new Refused(`Its checkpoint is not signed by ${key.name}.`);
  return [origin, BigInt(size!), base64(root)];
}

/** The text of a note, and the key's name and number and the signature in each line after it. */
function parts(note: string): [string, [string, string, Bytes][]] {
  const at = note.lastIndexOf("\n\n");  // c2sp.org/signed-note
  const lines = note.slice(at + 2).split("\n");
  const end = lines.pop();
  const isWhole = at >= 0 && end === "" && lines.length > 0;
  must(isWhole && new Set(lines).size === lines.length, "its checkpoint is not a signed note");
  const signatures = lines.map((line): [string, string, Bytes] => {
    const [, name = "", signed = ""] = /^\u2014 ([^ +]+) ([^ ]+)$/.exec(line) ?? [];
    const raw = base64(signed);
    must(raw.length > 4, "a line of its checkpoint is not a signature");
    return [name, hex(raw.slice(0, 4)), raw.slice(4)];
  });
  return [note.slice(0, at + 1), signatures];
}

function signedNote(signature: Bytes, text: string, key: Verifier): Promise<boolean> {
  if (key.kind === ED25519) return verifies(key.raw, signature, utf8(text));
  const time = number(signature.slice(0, 8));  // c2sp.org/tlog-cosignature
  return verifies(key.raw, signature.slice(8), utf8(`cosignature/v1\ntime ${time}\n${text}`));
}

/** The hashes of the facts' leaves, if each of them is in the tree with this root. */
async function included(receipt: Receipt, size: bigint, root: Uint8Array): Promise<string[]> {
  const { facts, proofs } = receipt;
  const nodes = receipt.hashes.map(base64);
  must(facts.length === proofs.length, "it does not have one proof for each fact");
  must(new Set(receipt.hashes).size === nodes.length, "a hash stands twice");
  must(new Set(proofs.flat()).size === nodes.length, "a hash is of no proof");
  const leaves: string[] = [];
  let last = 0;
  for (const [at, fact] of facts.entries()) {
    must(fact.seq > last, "its facts are not in order");
    last = fact.seq;
    must(proofs[at]!.every((one) => one < nodes.length), "a proof is not whole");
    const beside = proofs[at]!.map((one) => nodes[one]!);
    const leaf = await leafOf(fact);
    leaves.push(hex(await sha256(leaf)));
    const found = await rootOf(await sha256(join([0], leaf)), BigInt(fact.seq) - 1n, size, beside);
    const isIn = found !== null && hex(found) === hex(root);
    must(isIn, `fact ${fact.seq} is not the one that was sealed`);
  }
  return leaves;
}

/** The bytes that stand for a fact. */
async function leafOf({ seq, time, subject, payload }: Fact): Promise<Bytes> {
  must(/^[1-9][0-9]{0,18}$/.test(time), "a time is not one");
  const [name, data] = [utf8(subject), utf8(payload)];
  const head = [utf8("ayes fact 1\n"), big(BigInt(seq), 8), big(BigInt(time), 8)];
  const tail = [big(BigInt(data.length), 4), await sha256(data)];
  return join(...head, big(BigInt(name.length), 2), name, ...tail);
}

/** The root that a proof leads to (RFC 9162, section 2.1.3.2); null if it has another length. */
async function rootOf(
  leaf: Bytes, index: bigint, size: bigint, proof: readonly Bytes[],
): Promise<Bytes | null> {
  if (index < 0n || index >= size) return null;
  let [at, last, hash] = [index, size - 1n, leaf];
  for (const one of proof) {
    if (last === 0n) return null;
    if (at & 1n || at === last) {
      hash = await sha256(join([1], one, hash));
      while (at && !(at & 1n)) [at, last] = [at >> 1n, last >> 1n];
    } else {
      hash = await sha256(join([1], hash, one));
    }
    [at, last] = [at >> 1n, last >> 1n];
  }
  return last === 0n ? hash : null;
}

// ------------------------------------------------------------------------------- the statement

interface Sealed {
  readonly origin: string;
  readonly size: bigint;
  readonly root: Uint8Array;
  readonly leaves: readonly string[];
}

/** The call that the statement is about, if the facts say what it says. */
async function summary(receipt: Receipt, log: Verifier, sealed: Sealed): Promise<string> {
  const { payloadType, payload, signatures } = receipt.statement;
  const bytes = base64(payload);
  let call: unknown;
  try {
    call = (JSON.parse(decoded(bytes)) as { subject: [{ name: unknown }] }).subject[0].name;
  } catch {
    call = null;
  }
  if (typeof call !== "string" || call.split("/").length !== 3)
    throw new Refused("Its statement names no call.");
  const wish = event(receipt.facts, `${subject(call)}.requested`);
  must(wish.type === "ToolRequested", "the request is not among its facts");
  const digest = await callDigest(wish, field(wish, "arguments", ""));
  must(field(wish, "digest", "") === digest, "its request names the digest of another call");
  const said = event(receipt.facts, `${subject(call)}.decided`);
  const votes = votesOn(call, receipt.facts).map(([person, vote]) => ({
    person,
    verdict: field(vote, "verdict", ""),
    key: signatureOf(field(vote, "signature", ""))?.key ?? "",
  }));
  const predicate = {
    log: sealed.origin,
    size: Number(sealed.size),
    root: encoded(sealed.root),
    decision: field(said, "type", ""),
    ground: field(said, "ground", ""),
    rule: field(said, "rule", ""),
    policy: field(said, "policy_version", 0),
    organisation: field(said, "organisation", false),
    votes,
    facts: receipt.facts.map(({ seq }, at) => [seq, sealed.leaves[at]]),
  };
  const wanted = JSON.stringify({
    _type: "https://in-toto.io/Statement/v1",
    subject: [{ name: call, digest: { sha256: digest } }],
    predicateType: "https://github.com/in-toto/attestation/ayes/call/v1",
    predicate,
  });
  must(payloadType === TYPE && signatures.length === 1, "its statement is not in an envelope");
  must(wanted === decoded(bytes), "its statement is not what its facts say");
  const [by] = signatures;
  const signed = join(utf8(`DSSEv1 ${TYPE.length} ${TYPE} ${bytes.length} `), bytes);
  const isSigned = by?.keyid === log.id && (await verifies(log.raw, base64(by.sig), signed));
  must(isSigned, `its statement is not signed by ${log.name}`);
  return call;
}

// ----------------------------------------------------------------------------- what it shows

async function shown(
  call: string, facts: readonly Fact[], origin: string, size: bigint, trusted: Trusted,
): Promise<Shown> {
  const at = (place: string) => facts.find((one) => one.subject === `${subject(call)}.${place}`);
  const [wish, asked, said] = ["requested", "gated", "decided"].map((place) =>
    event(facts, `${subject(call)}.${place}`)) as [Event, Event, Event];
  const isAsked = asked.type === "ApprovalRequested";
  const decided = at("decided");
  const context = isAsked ? await contextOf(call, facts, origin, trusted) : null;
  const votes: ShownVote[] = [];
  for (const [person, vote, fact] of votesOn(call, facts)) {
    const problem = context ? await unproved(person, vote, fact, context) : "nobody was asked";
    votes.push({
      person,
      inPlaceOf: field(vote, "on_behalf_of", ""),
      verdict: field(vote, "verdict", ""),
      reason: field(vote, "reason", ""),
      at: timeOf(fact),
      key: problem ? "" : signatureOf(field(vote, "signature", ""))!.key,
      problem,
    });
  }
  return {
    call,
    tool: field(wish, "tool", ""),
    arguments: field(wish, "arguments", ""),
    requester: field(wish, "requester", ""),
    decision: field(said, "type", ""),
    ground: field(said, "ground", ""),
    decidedAt: decided ? timeOf(decided) : null,
    rule: isAsked ? field(asked, "rule", "") : "",
    votesNeeded: isAsked ? field(asked, "votes_needed", 1) : 0,
    votes,
    log: origin,
    sealed: size,
    facts,
  };
}

interface Context {
  readonly log: string;
  readonly call: string;
  readonly facts: readonly Fact[];
  readonly wish: Event;
  readonly gated: Fact;
  /** The number of the decision; Infinity: there is none. */
  readonly end: number;
  /** From which number of the log on the end of a key changes nothing. */
  readonly until: number;
  readonly requestedHash: string;
  readonly gatedHash: string;
  readonly policyHash: string;
  readonly keys: ReadonlyMap<string, PersonKey>;
  readonly origins: readonly string[];
}

/** What the votes on a call are judged by. */
async function contextOf(
  call: string, facts: readonly Fact[], origin: string, trusted: Trusted,
): Promise<Context> {
  const place = (name: string) => facts.find((one) => one.subject === `${subject(call)}.${name}`)!;
  const [requested, gated] = [place("requested"), place("gated")];
  const asked = event(facts, gated.subject);
  const owner = field(asked, "organisation", false) ? "_organisation" : call.split("/")[0];
  const version = field(asked, "policy_version", 0);
  const policy = event(facts, `ledger.${owner}._policy.${version}`);
  const end = facts.find((one) => one.subject === `${subject(call)}.decided`)?.seq ?? Infinity;
  const log = origin.split("/").find((one) => /^[0-9a-f]{32}$/.test(one)) ?? "";
  return {
    log,
    call,
    facts,
    wish: event(facts, requested.subject),
    gated,
    end,
    until: isStarted(call, facts, end) ? end : Infinity,
    requestedHash: hex(await sha256(utf8(requested.payload))),
    gatedHash: hex(await sha256(utf8(gated.payload))),
    policyHash: version && policy.type ? hex(await sha256(utf8(field(policy, "text", "")))) : "",
    keys: await keysOf(facts, log, trusted),
    origins: trusted.origins,
  };
}

/** Whether the call was started after it was approved, as it was approved. */
function isStarted(call: string, facts: readonly Fact[], end: number): boolean {
  const said = event(facts, `${subject(call)}.decided`);
  const claims = facts.filter((one) => `${one.subject}.`.startsWith(`${subject(call)}.claim.`));
  return said.type === "Approved" && claims.some((one) => {
    const claim = read(one);
    return one.seq > end && claim.type === "ToolStarted" && claim.digest === said.digest;
  });
}

const UNCONFIRMED = "nobody whom you trust has confirmed its key before people were asked";

/** Why a vote is not proved to be its person's; empty if it is. */
async function unproved(
  person: string, vote: Event, fact: Fact, context: Context,
): Promise<string> {
  if (fact.seq > context.end) return "the call was decided before it";
  for (const name of [person, field(vote, "on_behalf_of", "")]) {
    const why = barred(name, fact, context);
    if (why) return why;
  }
  const signature = signatureOf(field(vote, "signature", ""));
  if (!signature) return "it is not signed";
  const key = context.keys.get(signature.key);
  if (!key) return "its key is not among the facts";
  if (key.person !== person) return `its key is that of ${key.person}`;
  if (!counts(key, context.gated)) return UNCONFIRMED;
  if (key.ended && key.ended.seq < context.until) return "its key has ended";
  const left = BigInt(signature.until) * 1_000_000n - micros(fact);
  if (left < 0n || left > 300_000_000n) return "its signature was too old, or too young";
  const digest = await voteDigest(person, vote, signature.until, context);
  if (!key.rp)
    return signature.raw.length === 1 && (await verifies(key.raw, signature.raw[0]!, digest))
      ? "" : "its signature is of another vote";
  const flaw = await flawOf(key, signature.raw, digest, context.origins);
  return flaw || ((await hasFallen(person, fact, key, signature, context))
    ? "the counter of its passkey was as high before" : "");
}

/** Whether the counter of a vote's passkey was as high in an earlier vote of its person. */
async function hasFallen(
  person: string, vote: Fact, key: PersonKey, { key: id, raw }: Signature, { facts }: Context,
): Promise<boolean> {
  let highest = 0;
  for (const fact of facts.filter((one) => one.seq < vote.seq)) {
    const [, , , kind, , place, whose, ...rest] = fact.subject.split(".");
    if (kind !== "call" || place !== "vote" || whose !== person || rest.length) continue;
    const said = read(fact);
    const other = said.type === "Voted" ? signatureOf(field(said, "signature", "")) : null;
    if (other?.key === id && other.raw.length === 3 && (await isSigned(key, other.raw)))
      highest = Math.max(highest, countOf(other.raw));
  }
  const count = countOf(raw);
  return count <= highest && (count > 0 || highest > 0);
}

/** Why a person's votes count for nothing, by the last fact before this one about them. */
function barred(name: string, vote: Fact, { call, facts }: Context): string {
  const before = facts.filter((one) => one.seq < vote.seq);
  const last = before.map((one) => aboutPerson(name, one)).findLast((one) => one.type) ?? {};
  if (last.type === "PersonRemoved") return `${name} was removed before it`;
  const workspace = call.split("/")[0]!;
  const only = field<readonly string[] | null>(last, "workspaces", null) ?? [];
  return only.length && !only.includes(workspace) ? `${name} was not of ${workspace} then` : "";
}

/** What a fact says of whom a name stands for; empty if it says nothing of it. */
function aboutPerson(name: string, fact: Fact): Event {
  const [, owner, kind, whose = "", ...rest] = fact.subject.split(".");
  const isAbout = owner === "_organisation" && kind === "_person" && rest.length === 1;
  const said = isAbout && plain(whose) === plain(name) ? read(fact) : {};
  const kinds = ["PersonAdded", "PersonRemoved", "WorkspacesSet"];
  return kinds.includes(field(said, "type", "")) ? said : {};
}

/** A key as its person has added it; a passkey is of a domain. */
interface PublicKey {
  /** As its fact has it, in the one form there is. */
  readonly text: string;
  readonly rp: string;
  readonly raw: Bytes;
}

/** A key with which a person signs. */
interface PersonKey extends PublicKey {
  readonly person: string;
  /** The ids of those whom the reader trusts who have confirmed it. */
  readonly by: Set<string>;
  /** The names of others who have, after its person had a key that was confirmed. */
  readonly others: Set<string>;
  /** The fact by which it is confirmed, and from when on it counts, in microseconds. */
  confirmed?: Fact;
  from?: bigint;
  /** The fact by which it has ended, or its person's name. */
  ended?: Fact;
}

/** Whether a key was confirmed before a fact. */
function counts({ confirmed, from }: PersonKey, at: Fact): boolean {
  return confirmed !== undefined && confirmed.seq < at.seq && from! <= micros(at);
}

/** Have a key count from this fact on, or some time after it, unless it does so earlier. */
function count(key: PersonKey, fact: Fact, afterS = 0): void {
  const from = micros(fact) + BigInt(Math.round(afterS * 1e6));
  if (key.from === undefined || from < key.from) Object.assign(key, { confirmed: fact, from });
}

/** People's keys, by the facts about them in the order of the log, as `keys_of` in ledger/keys.py
 * has them. A key is of the first person who adds it: with two names it would let one person vote
 * twice.
 */
async function keysOf(
  facts: readonly Fact[], log: string, trusted: Trusted,
): Promise<ReadonlyMap<string, PersonKey>> {
  const keys = new Map<string, PersonKey>();
  for (const fact of facts) {
    for (const one of keys.values()) {
      const said = field(aboutPerson(one.person, fact), "type", "");
      if (["PersonAdded", "PersonRemoved"].includes(said)) one.ended ??= fact;
    }
    const [, owner, kind, person = "", id = "", place, by = "", ...rest] = fact.subject.split(".");
    if (owner !== "_organisation" || kind !== "_key" || rest.length) continue;
    const [said, known] = [read(fact), keys.get(id)];
    if (said.type === "KeyAdded" && place === "added" && !by && !known) {
      const text = field<unknown>(said, "key", "");
      const key = await personKey(text, `${person}/${log}`, id, trusted.rp).catch(() => null);
      if (key) keys.set(id, { ...key, person, by: new Set(), others: new Set() });
    }
    if (known?.person !== person) continue;
    if (said.type === "KeyConfirmed" && place === "confirmed")
      await confirm(known, fact, keys, log, trusted);
    if (said.type === "KeyRevoked" && place === "revoked") known.ended ??= fact;
  }
  return keys;
}

/** Confirm a key by a fact, of which the first signature by each key is judged: of as many as are
 * needed of those whom the reader trusts, of an older key of its person that counts, or of others,
 * if its person has had one before. A passkey confirms nothing.
 */
async function confirm(
  key: PersonKey, fact: Fact, keys: ReadonlyMap<string, PersonKey>, log: string,
  { quorums, lost }: Trusted,
): Promise<void> {
  const digest = await signable("ayes key 1", [log, key.person, key.text]);
  const first = new Map<string, Bytes>();
  const texts = field<unknown>(read(fact), "signatures", []);
  const areTexts = Array.isArray(texts) && texts.every((one) => typeof one === "string");
  for (const one of areTexts ? texts.map(signatureOf) : []) {
    const [raw, ...more] = one?.raw ?? [];
    if (raw && !more.length && one!.until === "0" && !first.has(one!.key)) first.set(one!.key, raw);
  }
  const had = [...keys.values()].some((one) =>
    one !== key && one.person === key.person && one.confirmed);
  for (const [id, raw] of first) {
    if (key.from !== undefined && key.from <= micros(fact)) return;
    const trusted = quorums.find((one) => one.keys.has(id))?.keys.get(id);
    if (trusted && !key.by.has(id) && (await verifies(trusted.raw, raw, digest))) {
      key.by.add(id);
      const isMet = ({ keys, needed }: Quorum) =>
        [...key.by].filter((one) => keys.has(one)).length >= needed;
      if (quorums.some(isMet)) count(key, fact);
    }
    const other = keys.get(id);
    if (!other || other.rp || other.ended || !counts(other, fact)) continue;
    const isOwn = other.person === key.person;
    if (!isOwn && (!lost || !had || key.others.has(other.person))) continue;
    if (!(await verifies(other.raw, raw, digest))) continue;
    if (!isOwn) key.others.add(other.person);
    if (isOwn) count(key, fact);
    else if (new Set([...key.others].map(plain)).size >= lost!.people)
      count(key, fact, lost!.afterS);
  }
}

/** The key that is written as of this name, with this id, and for the domain of the pages; null if
 * it is another.
 */
async function personKey(
  text: unknown, name: string, id: string, domain: string,
): Promise<PublicKey | null> {
  if (typeof text !== "string") return null;
  const [mark, whose, rp = "", ...rest] = text.split("+");
  if (mark !== "webauthn") {
    const { name: theirs, raw } = await verifier(text);
    return theirs === name && (await keyId(raw)) === id ? { text, rp: "", raw } : null;
  }
  const raw = base64(rest.join("+"));
  const isTheirs = whose === name && rp !== "" && rp === domain;
  return isTheirs && isTaken(raw) && (await idOf(raw)) === id ? { text, rp, raw } : null;
}

/** What the signature of a vote signs. */
async function voteDigest(
  person: string, vote: Event, until: string, context: Context,
): Promise<Bytes> {
  const [workspace, thread, call] = context.call.split("/") as [string, string, string];
  const { wish } = context;
  const [answer, isError] = [field(vote, "answer", ""), field(vote, "is_error", false)];
  const reason = field(vote, "reason", "");
  const runs = field<string | null>(vote, "arguments", null) ?? field(wish, "arguments", "");
  const content = answer || isError ? `${isError ? "error" : "answer"}\n${answer}` : "";
  return signable("ayes vote 1", [
    context.log,
    workspace,
    thread,
    call,
    person,
    field(vote, "on_behalf_of", ""),
    field(vote, "verdict", ""),
    field(vote, "halt", false) ? "1" : "",
    await callDigest(wish, runs),
    content && hex(await sha256(utf8(content))),
    reason && hex(await sha256(utf8(reason))),
    context.requestedHash,
    context.gatedHash,
    context.policyHash,
    until,
  ]);
}

/** The digest of a call with these arguments. */
async function callDigest(wish: Event, runs: string): Promise<string> {
  const names = [utf8(field(wish, "tool", "")), utf8(field(wish, "tool_version", ""))];
  const head = names.flatMap((one) => [utf8(`${one.length}:`), one]);
  return hex(await sha256(join(...head, utf8(runs))));
}

// -------------------------------------------------------------------------------- the small parts

type Bytes = Uint8Array<ArrayBuffer>;
type Event = Readonly<Record<string, unknown>>;

/** The event of the fact with this subject; empty if there is none. */
function event(facts: readonly Fact[], subject: string): Event {
  const fact = facts.find((one) => one.subject === subject);
  return fact ? read(fact) : {};
}

/** The event of a fact; empty if it is not one, or of a newer program, and so not known here. */
function read(fact: Fact): Event {
  try {
    const found: unknown = JSON.parse(fact.payload);
    const said = found !== null && typeof found === "object" ? (found as Event) : {};
    return field(said, "v", 1) === 1 ? said : {};
  } catch {
    return {};
  }
}

function field<T>(from: Event, name: string, otherwise: T): T {
  return (from[name] as T | undefined) ?? otherwise;
}

/** The votes on a call, in the order of the log, with the name in their subject. */
function votesOn(call: string, facts: readonly Fact[]): [string, Event, Fact][] {
  const place = `${subject(call)}.vote.`;
  return facts.filter((one) => one.subject.startsWith(place)).map((one) => {
    const said = read(one);
    return [one.subject.slice(place.length), said.type === "Voted" ? said : {}, one];
  });
}

function subject(call: string): string {
  const [workspace, thread, name] = call.split("/");
  return `ledger.${workspace}.${thread}.call.${name}`;
}

interface Signature {
  readonly key: string;
  readonly until: string;
  /** The signature; of a passkey authenticatorData, clientDataJSON and signature. */
  readonly raw: readonly Bytes[];
}

/** A signature as ledger/signing.py writes it, with Ed25519 or a passkey. */
export function signatureOf(text: string): Signature | null {
  const head = /^(ed25519|webauthn)\.1\.([0-9a-f]{16})\.(0|[1-9][0-9]{0,11})\.([A-Za-z0-9_.-]+)$/;
  const found = typeof text === "string" && head.exec(text);
  if (!found) return null;
  const [, kind, key, until, rest] = found as unknown as [string, string, string, string, string];
  const parts = rest.split(".");
  const most = kind === "webauthn" ? [1400, 2800, 110] : [86];
  const isWhole = parts.length === most.length && parts.every((one, at) =>
    one.length > 0 && one.length <= most[at]!) && (kind === "webauthn" || rest.length === 86);
  if (!isWhole) return null;
  try {
    return { key, until, raw: parts.map(base64url) };
  } catch {
    return null;
  }
}

/** The bytes of a text in base64url without padding that is written in the one way there is. */
function base64url(text: string): Bytes {
  const padding = "=".repeat((4 - (text.length % 4)) % 4);
  return base64(text.replaceAll("-", "+").replaceAll("_", "/") + padding);
}

// --------------------------------------------------------------------- passkeys (W3C WebAuthn)

/** What stands before a key in its SubjectPublicKeyInfo, and the bytes after: Ed25519, P-256. */
const SPKI: readonly (readonly [string, number])[] = [
  ["302a300506032b6570032100", 32],
  ["3059301306072a8648ce3d020106082a8648ce3d03010703420004", 64],
];

/** Whether it is a key of a kind that is taken, in its one encoding, and not anybody can sign for. */
export function isTaken(spki: Bytes): boolean {
  const [head, more] = SPKI.find(([head]) => hex(spki).startsWith(head)) ?? ["", -1];
  const rest = spki.slice(head.length / 2);
  return rest.length === more && (head !== SPKI[0]![0] || isSound(rest));
}

/** Why a passkey has not signed a challenge on one of these pages; empty if it has. */
export async function flawOf(
  key: { readonly rp: string; readonly raw: Bytes }, raw: readonly Bytes[], challenge: Bytes,
  origins: readonly string[],
): Promise<string> {
  const [data, client] = raw;
  const said = raw.length === 3 && data!.length >= 37 ? members(client!) : null;
  if (!said) return "it is not what a browser signs";
  if (said.get("type") !== '"webauthn.get"') return "it was made for something else than to sign";
  const wanted = encoded(challenge).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  if (said.get("challenge") !== `"${wanted}"`) return "its signature is of another vote";
  if (!origins.some((one) => said.get("origin") === `"${one}"`))
    return "it was made on a page that is not trusted";
  if ((said.get("crossOrigin") ?? "false") !== "false" || said.has("topOrigin"))
    return "the page was in a frame of another one";
  if (hex(data!.slice(0, 32)) !== hex(await sha256(utf8(key.rp))))
    return "the key was used for another domain";
  if ((data![32]! & 5) !== 5) return "the device did not ask who its person is";
  return (await isSigned(key, raw)) ? "" : "another key has signed it";
}

const countOf = ([data]: readonly Bytes[]) => Number(number(data!.slice(33, 37)));

/** The members of `clientDataJSON`, each once, as they are written; null if browsers do not so. */
function members(client: Bytes): Map<string, string> | null {
  const one = String.raw`"([A-Za-z0-9_]+)":("[^"\\\x00-\x1f]*"|true|false)`;
  let text: string;
  try {
    text = decoded(client);
  } catch {
    return null;
  }
  if (!new RegExp(`^\\{(?:${one})(?:,(?:${one}))*\\}$`, "u").test(text)) return null;
  const pairs = [...text.matchAll(new RegExp(one, "gu"))].map(([, name, value]) =>
    [name!, value!] as const);
  const found = new Map(pairs);
  return found.size === pairs.length ? found : null;
}

/** Whether this passkey has signed it, whatever it is about. */
async function isSigned(
  { raw: spki }: { readonly raw: Bytes }, [data, client, signature]: readonly Bytes[],
): Promise<boolean> {
  const signed = join(data!, await sha256(client!));
  if (hex(spki).startsWith(SPKI[0]![0])) return verifies(spki.slice(12), signature!, signed);
  const raw = plainSignature(signature!);
  if (!raw) return false;
  const kind = { name: "ECDSA", namedCurve: "P-256", hash: "SHA-256" };
  let key: CryptoKey;
  try {
    key = await crypto.subtle.importKey("spki", spki, kind, false, ["verify"]);
  } catch {
    return false;
  }
  return crypto.subtle.verify(kind, key, raw, signed);
}

/** A signature of P-256 as WebCrypto has it, out of DER in its one form; null if it is another. */
function plainSignature(der: Bytes): Bytes | null {
  const whole = new Uint8Array(64);
  if (der[0] !== 0x30 || der[1] !== der.length - 2 || der.length > 72) return null;
  let at = 2;
  for (const end of [32, 64]) {
    const length = der[at + 1] ?? 0;
    const value = der.slice(at + 2, at + 2 + length);
    const [first = 0x80, second = 0x80] = value;
    const isLeast = first < 0x80 && !(first === 0 && value.length > 1 && second < 0x80);
    if (der[at] !== 0x02 || value.length !== length || length === 0 || !isLeast) return null;
    const bare = first === 0 ? value.slice(1) : value;
    if (bare.length > 32) return null;
    whole.set(bare, end - bare.length);
    at += 2 + length;
  }
  return at === der.length ? whole : null;
}

/** The id of a person's key: of the SHA-256 of its SubjectPublicKeyInfo (RFC 8410). */
async function keyId(key: Bytes): Promise<string> {
  const head = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
  return idOf(join(head, key));
}

const idOf = async (spki: Bytes) => hex(await sha256(spki)).slice(0, 16);

/** The SHA-256 of a purpose and fields, each with its length. */
function signable(purpose: string, fields: readonly string[]): Promise<Bytes> {
  const parts = fields.map(utf8).flatMap((one) => [utf8(`${one.length}:`), one]);
  return sha256(join(utf8(`${purpose}\n`), ...parts));
}

const P = 2n ** 255n - 19n;
/** Of the points of order 8; the others of small order have 0, 1 and -1. */
const Y = 0x7a03ac9277fdc74ec6cc392cfa53202a0f67100d760b3cba4fd84d3d706a17c7n;
const SMALL = [0n, 1n, P - 1n, Y, P - Y];

/** Whether this can be a public key, and the first half of a signature (ledger/ed25519.py). */
function isSound(point: Uint8Array): boolean {
  const y = BigInt.asUintN(255, number(point.toReversed()));  // the last bit is the sign of x
  return point.length === 32 && y < P && !SMALL.includes(y);
}

async function verifies(key: Bytes, signature: Bytes, data: Bytes): Promise<boolean> {
  if (!isSound(key) || !isSound(signature.slice(0, 32))) return false;
  let imported: CryptoKey;
  try {
    imported = await crypto.subtle.importKey("raw", key, "Ed25519", false, ["verify"]);
  } catch (problem) {
    if ((problem as Error).name === "DataError") return false;  // no point has these coordinates
    throw new Unable("This browser cannot check signatures of Ed25519.");
  }
  return crypto.subtle.verify("Ed25519", imported, signature, data);
}

function must(condition: boolean, why: string): void {
  if (!condition) throw new Refused(`${why[0]!.toUpperCase()}${why.slice(1)}.`);
}

/** Its time as Python has it. */
const micros = (fact: Fact) => BigInt(fact.time) / 1_000n;
const timeOf = (fact: Fact) => new Date(Number(BigInt(fact.time) / 1_000_000n));
const utf8 = (text: string): Bytes => new TextEncoder().encode(text);
/** A name without case and white space, as `plain` in schemas/people.py. */
const plain = (name: string) => name.normalize("NFKC").toLowerCase().replace(/\s/g, "");
const hex = (bytes: Uint8Array) =>
  [...bytes].map((one) => one.toString(16).padStart(2, "0")).join("");
const sha256 = async (bytes: Bytes) => new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
const number = (bytes: Uint8Array) => BigInt(`0x${hex(bytes) || "0"}`);
const encoded = (bytes: Uint8Array) => btoa(String.fromCharCode(...bytes));

function decoded(bytes: Uint8Array): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new Refused("This is not text.");
  }
}

/** The bytes of a text in base64 that is written in the one way there is. */
function base64(text: string): Bytes {
  let raw: Bytes;
  try {
    raw = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  } catch {
    throw new Refused("A part of it is not base64.");
  }
  must(encoded(raw) === text, "a part of it is base64 in another form");
  return raw;
}

function big(value: bigint, length: number): Bytes {
  const bytes = new Uint8Array(length);
  for (let at = length - 1; at >= 0; at--, value >>= 8n) bytes[at] = Number(value & 255n);
  return bytes;
}

function join(...parts: readonly (Uint8Array | readonly number[])[]): Bytes {
  const bytes = new Uint8Array(parts.reduce((sum, one) => sum + one.length, 0));
  let at = 0;
  for (const one of parts) {
    bytes.set(one, at);
    at += one.length;
  }
  return bytes;
}
