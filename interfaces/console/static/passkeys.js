/* Passkeys: a vote is signed, or a key is made. What is signed is on the page before its button is
 * shown, and a press asks the browser before anything else: some browsers take no other.
 */

const KEPT = "ayes-signing";
const bytes = (text) =>
  Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (one) => one.charCodeAt(0));
const text = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer)))
  .replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
const REFUSED = "Nothing was signed: the browser or the device refused, or waited too long. A device " +
  "must have one of your passkeys, and ask who you are. Press again, or use the terminal: ";

/* What makes or uses passkeys in a part of a page. */
export function offer(part) {
  for (const form of part.querySelectorAll("[data-passkey]")) {
    const { passkey } = form.dataset;
    if (passkey === "return") sendKept(form);
    else if (window.isSecureContext && window.PublicKeyCredential && start(form)) show(form);
  }
}

const start = (form) => form.querySelector("[data-start]");
const say = (form, said) => { form.querySelector("[data-state]").textContent = said; };

function show(form) {
  const { passkey, rp, challenge } = form.dataset;
  const isVote = passkey === "vote";
  const button = start(form);
  button.hidden = false;
  say(form, "");
  const [, made] = isVote ? [] : returned("/passkeys");
  if (made) return take(form, made);
  if (button.matches("a")) {
    button.addEventListener("click", () => keep(form));
    return;
  }
  const publicKey = isVote ? {
    rpId: rp,
    challenge: bytes(challenge),
    allowCredentials: Object.values(JSON.parse(form.dataset.keys)).filter(Boolean)
      .map((id) => ({ type: "public-key", id: bytes(id) })),
    userVerification: "required",
  } : {
    rp: { id: rp, name: "ayes" },
    user: {
      id: bytes(challenge),  // of one log: it replaces no other's
      name: form.dataset.person,
      displayName: form.dataset.person,
    },
    challenge: bytes(challenge),
    pubKeyCredParams: [-7, -8].map((alg) => ({ type: "public-key", alg })),
    authenticatorSelection: { residentKey: "preferred", userVerification: "required" },
    excludeCredentials: JSON.parse(form.dataset.taken)
      .map((id) => ({ type: "public-key", id: bytes(id) })),
    attestation: "none",
  };
  button.addEventListener("click", () => {
    const asked = isVote
      ? navigator.credentials.get({ publicKey })
      : navigator.credentials.create({ publicKey });
    button.disabled = true;
    asked.then((made) => (isVote ? send(form, made) : ready(form, made)))
      .catch((problem) => say(form, `${REFUSED}${form.dataset.command} (${problem.name}: ${problem.message})`))
      .finally(() => { button.disabled = false; });
  });
}

function send(form, { rawId, response }) {
  const { keys, until } = form.dataset;
  const id = Object.entries(JSON.parse(keys)).find(([, one]) => one === text(rawId))?.[0];
  const parts = [response.authenticatorData, response.clientDataJSON, response.signature].map(text);
  form.elements.signature.value = ["webauthn.1", id, until, ...parts].join(".");
  form.requestSubmit();
}

/* A passkey was made: its digits, and the button that sends it. */
async function ready(form, { id, rawId, response }) {
  const spki = response.getPublicKey();
  const made = {
    id, rawId: text(rawId), type: "public-key",
    response: {
      clientDataJSON: text(response.clientDataJSON),
      attestationObject: text(response.attestationObject),
    },
  };
  if (!spki) return say(form, "This browser does not say which key it made. Use another one.");
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", spki));
  const digits = [...digest.slice(0, 16)].map((one) => one.toString(16).padStart(2, "0")).join("");
  form.elements.made.value = JSON.stringify(made);
  form.querySelector("[data-digits]").textContent = digits.match(/.{4}/g).join(" ");
  say(form, "Your browser made a passkey. Note its digits: you confirm it by them.");
  finish(form);
}

/* A passkey was made on the sign page, which has shown its digits. */
function take(form, given) {
  form.elements.made.value = new TextDecoder().decode(bytes(given));
  say(form, "The sign page made a passkey, and has shown its digits.");
  finish(form);
}

function finish(form) {
  start(form).hidden = true;
  const button = form.querySelector("[data-send]");
  button.hidden = false;
  button.focus();
}

/* What the sign page is to sign, or that it makes a passkey, stays in this tab. */
function keep(form) {
  const fields = [...new FormData(form)];
  sessionStorage.setItem(KEPT, JSON.stringify({ to: form.getAttribute("action"), fields }));
}

/* What was kept for an address that begins so, and what the sign page has answered. Another site
 * could lead here with an answer of its own: nothing was kept then.
 */
function returned(to) {
  const answer = location.hash.slice(1);
  if (!answer) return [];
  const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
  sessionStorage.removeItem(KEPT);
  history.replaceState(null, "", location.pathname);
  return kept?.to.startsWith(to) ? [kept, answer] : [];
}

function sendKept(form) {
  const [kept, signature] = returned("/calls/");
  if (!kept) return;
  for (const [name, value] of kept.fields) {
    const field = document.createElement("input");
    Object.assign(field, { type: "hidden", name, value: name === "signature" ? signature : value });
    form.append(field);
  }
  form.setAttribute("action", kept.to);
  say(form, "Your vote is being sent.");
  form.requestSubmit();
}
