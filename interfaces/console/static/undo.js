/* Votes that can be undone: this tab holds them until their end, and then sends them. The store of
 * the tab has what is sent, that of the browser what to say if the tab is closed. A vote that is no
 * longer in the latter was undone or sent. console.js starts this once a form allows it.
 */

const LATE_MS = 2000;  // a vote is sent at its end, or so long after it, or not at all
const CAST = { approve: "Approved", deny: "Denied", answer: "Answered" };

export function start({
  HELD, NO_ANSWER, all, announce, countSelected, find, goOn, isDesk, isLeaving, lineOf, parsed, rowOf,
  rows, say, select, signInAgain, visitor, voted,
}) {
  const held = new Map();  // by call, the newest last: its line, and its timer

  /* Whether the vote of this form is not to be sent now; one that cannot be kept is. */
  function hold(form, button) {
    const shown = form.closest("article.call");
    const { call } = shown.dataset;
    if (held.has(call)) take(call);
    if (localStorage.getItem(HELD + call))
      return say("Another page holds a vote of yours on this call."), true;
    const fields = [...new FormData(form, button)];
    const text = `${CAST[new Map(fields).get("verdict")]}: ${form.dataset.what}, ${call}`;
    const note = { text, until: Date.now() + 1000 * form.dataset.undo };
    try {
      sessionStorage.setItem(HELD + call, JSON.stringify(fields));
      localStorage.setItem(HELD + call, JSON.stringify(note));
    } catch {
      return false;
    }
    keep(call, note);
    setAside(shown);
    announce(`${text}. It is not sent yet: u undoes it.`);
    goOn(call);
    return true;
  }

  function keep(call, { text, until }) {
    const line = lineOf(text, () => undo(call));
    held.set(call, { line, timer: setTimeout(() => send(call), until - Date.now()) });
    markHeld();
  }

  /* No other vote is cast on a call whose vote is held. */
  function setAside(call) {
    all("form[data-undo]", call).forEach((form) => form.remove());
    find(".decide > .actions", call)?.replaceWith("Your vote is not sent yet.");
  }

  function markHeld() {
    for (const row of rows().filter((one) => !isLeaving(one))) {
      const isHeld = held.has(row.dataset.call);
      row.classList.toggle("held", isHeld);
      const box = find("input", row);
      box.disabled = isHeld;
      box.checked &&= !isHeld;
    }
    countSelected();
  }

  /* Hold a vote no longer, and return it; null if another tab did. */
  function take(call) {
    const { line, timer } = held.get(call) ?? {};
    held.delete(call);
    clearTimeout(timer);
    line?.remove();
    markHeld();
    const [note, fields] = [localStorage, sessionStorage].map((store) => {
      const kept = store.getItem(HELD + call);
      store.removeItem(HELD + call);
      return JSON.parse(kept);
    });
    return note && { ...note, fields };
  }

  /* A vote whose end is long past, since the page slept, is no longer sure to be meant. */
  async function send(call) {
    const vote = take(call);
    if (!vote?.fields) return;
    if (Date.now() > vote.until + LATE_MS) return unsent(call, vote, "This page was not running.");
    const body = new FormData();
    vote.fields.forEach(([name, value]) => body.append(name, value));
    const headers = { "HX-Request": "true", "Ayes-Visitor": visitor };
    const keepalive = JSON.stringify(vote.fields).length < 20_000;  // browsers allow 64 KiB
    const request = { method: "POST", headers, body, keepalive };
    const answer = await fetch(`/calls/${call}/vote`, request).catch(() => null);
    const taken = answer?.headers.get("HX-Trigger");
    if (taken) return voted(JSON.parse(taken)["ayes:voted"]);
    if (answer?.status === 401) signInAgain();
    const problem = answer && find(".problem p", parsed(await answer.text()))?.textContent;
    unsent(call, vote, problem ?? (answer ? `The console answered ${answer.status}.` : NO_ANSWER));
  }

  function undo(call) {
    const vote = take(call);
    if (!vote) return say("No vote can be undone: each was sent.");
    say(`Undone: “${vote.text}”.`);
    const row = rowOf(call);
    if (row && isDesk()) select(row);
    else location.assign(`/calls/${call}`);
  }

  function unsent(call, vote, why) {
    const text = `Not sent: “${vote.text}”. ${why}`;
    const line = lineOf(text, () => line.remove());
    find("button", line).textContent = "Close";
    Object.assign(find("a", line), { href: `/calls/${call}`, hidden: false });
    announce(text);
  }

  /* Hold on what this tab held on the page before, and report what a closed one dropped. */
  function resume() {
    for (const key of Object.keys(localStorage).filter((one) => one.startsWith(HELD))) {
      const call = key.slice(HELD.length);
      const note = JSON.parse(localStorage.getItem(key));
      const left = note.until + LATE_MS - Date.now();
      if (held.has(call)) continue;
      if (left < 0) unsent(call, take(call), "Its page was closed before.");
      else if (sessionStorage.getItem(key)) keep(call, note);
      else setTimeout(resume, left + 1);
    }
  }

  resume();
  return {
    hold,
    markHeld,
    enhance: (call) => { if (held.has(call.dataset.call)) setAside(call); },
    decided: (call, outcome) => { if (held.has(call)) unsent(call, take(call), `Meanwhile: ${outcome}.`); },
  };
}
