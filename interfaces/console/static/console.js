/* The behaviour of the pages. What it does, and what a template says to it, is in templates/base.html,
 * which the browser does not get. */

const root = document.documentElement;
root.classList.add("js");

const SHOWN_FOR_MS = 350;  // before an element with data-key takes a press
const STAYS_MS = 3000;     // how long a decided call stays in the list
const SILENT_MS = 4500;    // a heartbeat comes every 2 s; after this long, the connection is lost
const REFRESH_MS = 500;    // the list is read again at most this often
const FAILED_MS = 2000;    // after a call could not be read again
const COUNT_MS = 4000;     // the numbers of the header are read again at most this often
const VIEWS_MS = 15_000;   // those of the saved views are, since each of them searches all that waits
const HOUR_MS = 3.6e6;     // a deadline is near; no sooner a call that is put aside comes back
const ASIDE_MS = 8000;     // how long it is shown that a call was put aside
const LOOKED_MS = 700;     // so long somebody is at a call before others are told
const SAID_MS = 3000;      // how long it is shown that a key did nothing
const LOST = "The connection is lost. It is tried again by itself.";
const NO_ANSWER = "The console does not answer.";
const EARLY = "Too early: this call has just appeared. Press again.";

const find = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const parsed = (text) => new DOMParser().parseFromString(text, "text/html");
const visitor = document.body.dataset.visitor;
const workspace = new URLSearchParams(location.search).get("workspace") ?? "";
const list = find("#calls");
const detail = find("#detail");
const isDesk = () => detail && matchMedia("(min-width: 48.01rem)").matches;

// Messages.

function announce(text) {
  const line = find("#announcer");
  line.textContent = line.textContent === text ? `${text}\u00a0` : text;
}

let saying;
/* Say why a press did nothing, so that it can be read as well. */
function say(text) {
  announce(text);
  find("#announcer").className = "notice toast";
  clearTimeout(saying);
  saying = setTimeout(() => { find("#announcer").className = "visually-hidden"; }, SAID_MS);
}

function message(text, link) {
  if (find("#messages").textContent.startsWith(text)) return;  // it is read aloud once
  const line = document.createElement("p");
  line.className = "problem";
  line.setAttribute("role", "alert");
  line.append(text);
  if (link) line.append(" ", Object.assign(document.createElement("a"), link));
  find("#messages").replaceChildren(line);
}

const isUnanswered = () => find("#messages").textContent.startsWith(NO_ANSWER);
/* Say that a request was not answered, until one is. The numbers of the header are asked for. */
function unanswered(text) {
  message(`${NO_ANSWER} ${text}`);
  setTimeout(countSoon, COUNT_MS);
}

function answered() {
  if (isUnanswered()) find("#messages").replaceChildren();
}

function signInAgain() {
  const next = encodeURIComponent(location.pathname + location.search);
  message("Your session has ended. What you typed is kept.", {
    href: `/sign-in?next=${next}`,
    textContent: "Sign in again",
  });
}

/* A part of a page; null if it did not come. What the reader asked for is explained. */
async function fragment(path, { signal, isAsked = false } = {}) {
  const answer = await fetch(path, { headers: { "HX-Request": "true" }, signal });
  if (answer.status === 401) return signInAgain(), null;
  const text = await answer.text();
  if (isAsked && answer.ok) find("#messages").replaceChildren();
  if (answer.ok) return text;
  if (!isAsked) return null;
  const problem = find(".problem", parsed(text))?.textContent.trim();
  message(problem || `The console answered ${answer.status}. Try again.`);
  return null;
}

// Times: relative, with the absolute time in the reader's zone.

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
const absolute = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

function relative(at) {
  const seconds = Math.round((at - Date.now()) / 1000);
  const size = Math.abs(seconds);
  if (size < 5) return "now";
  const [length, unit] = UNITS.find(([length]) => size >= length);
  const text = `${Math.floor(size / length)}\u00a0${unit}`;
  return seconds < 0 ? `${text} ago` : `in ${text}`;
}

function showTimes(within = document) {
  for (const time of all("time[datetime]", within)) {
    const at = new Date(time.dateTime);
    const text = relative(at);
    time.title ||= absolute.format(at);
    if (time.textContent !== text) time.textContent = text;
    if (time.matches(".due")) time.classList.toggle("soon", at - Date.now() < HOUR_MS);
  }
}

// Drafts: typed text outlives a reload, a lost connection and a session that has ended.

const TEXT = "textarea, select, input:not([type]), input[type=text]";
const isDraft = (field) =>
  field.matches(TEXT) && field.name && field.form?.matches("[method=post]:not([data-draft=off])");
const draftsOf = (form) => `draft:${visitor}:${form.getAttribute("action")}:`;

function keepDraft(field) {
  if (!isDraft(field)) return;
  try {
    sessionStorage.setItem(draftsOf(field.form) + field.name, field.value);
  } catch {
    announce("This text is too long to be kept if the page is closed.");
  }
}

function restoreDrafts(within) {
  for (const field of all(TEXT, within).filter(isDraft)) {
    const kept = sessionStorage.getItem(draftsOf(field.form) + field.name);
    if (kept === null || kept === field.value) continue;
    field.value = kept;
    const inside = (details) => details.contains(field);
    all("details").filter(inside).forEach((details) => { details.open = true; });
  }
}

function dropDrafts(prefix) {
  const drafts = Object.keys(sessionStorage).filter((key) => key.startsWith(prefix));
  drafts.forEach((key) => sessionStorage.removeItem(key));
}

/* A form was sent without htmx. Its drafts go, unless a problem or the sign-in page came back. */
function settleSent() {
  const sent = sessionStorage.getItem("sent");
  sessionStorage.removeItem("sent");
  if (sent && visitor && !find("main [role=alert]")) dropDrafts(sent);
}

// The call that is shown.

const article = () => find("article.call:not([data-live] *)");
const isOpen = (field) => !field.readOnly && field.checkVisibility();
const FIELDS = `${TEXT}, [type=datetime-local]`;
const openForm = () => find("dialog[open]") ?? all(`article.call :is(${FIELDS})`).find(isOpen);

const down = new Set();  // the keys, and the buttons of pointers, that are down
/* Whether the reader is about to press something in it, or has just done so. */
const isPressed = (part) => down.size || find(PRESSED, part);
const PRESSED = ".htmx-request, [data-sent], [data-key]:hover, form button:hover";

function enhance(within) {
  showTimes(within);
  restoreDrafts(within);
  offerPasskeys(within);
  const call = within.matches?.("article.call") ? within : find("article.call", within);
  if (!call) return;
  startUndoing();
  undoing?.enhance(call);
  call.tabIndex = -1;
  setTimeout(() => call.setAttribute("data-ready", ""), SHOWN_FOR_MS);
  if (isDesk()) find(".edit-columns :is(textarea, select)", call)?.focus();
}

let loading;
async function show(path) {
  loading?.abort();
  loading = new AbortController();
  try {
    const text = await fragment(path, { signal: loading.signal, isAsked: true });
    if (text === null) return;
    detail.innerHTML = text;
    htmx.process(detail);
    enhance(detail);
    detail.scrollTop = 0;
    document.title = document.title.replace(/ · .*/, ` · ${named()} · ayes`);
    update();
  } catch (problem) {
    if (problem.name !== "AbortError") unanswered("Try again.");
  }
}

/* The newest event of each call. One that comes late does not move its call backwards. */
const newest = new Map();
const isBehind = (call) => newest.get(call.dataset.call)?.seq > Number(call.dataset.seq);

/* Show what happened to the call since it was read, but not under the hands of the reader. A form in
 * which somebody types stays open. */
function update() {
  const shown = article();
  if (!shown || !isBehind(shown) || isPressed(shown)) return;
  if (openForm()) notify(shown, newest.get(shown.dataset.call));
  else reload(shown);
}

let reloadAt = 0;
async function reload(call) {
  if (Date.now() < reloadAt) return;
  reloadAt = Infinity;
  const text = await fragment(`/calls/${call.dataset.call}`).catch(() => null);
  const fresh = text && find("article.call", parsed(text));
  reloadAt = Date.now() + (fresh ? REFRESH_MS : FAILED_MS);
  if (!fresh || !call.isConnected || openForm() || isPressed(call)) return;
  const hadFocus = call.contains(document.activeElement);
  const isSame = fresh.dataset.status === call.dataset.status;
  fresh.toggleAttribute("data-ready", isSame && call.hasAttribute("data-ready"));
  call.replaceWith(fresh);
  htmx.process(fresh);
  enhance(fresh);
  if (hadFocus) fresh.focus({ preventScroll: true });
}

function outcome({ type, status, by }) {
  if (type === "voted") return `Voted on by ${by}`;
  if (type === "changed") return `Something new${by ? ` by ${by}` : ""}`;
  return `${status.replaceAll("_", " ")}${by ? ` by ${by}` : ""}`;
}

function notify(call, event) {
  const text = `Meanwhile: ${outcome(event)}. What you typed is kept.`;
  const notice = find(".live-notice", call) ?? document.createElement("p");
  if (notice.textContent === text) return;
  notice.className = "notice live-notice";
  notice.setAttribute("role", "status");
  notice.textContent = text;
  call.prepend(notice);
}

// The list of waiting calls.

const gone = new Set();  // decided calls: a list that is older than the event keeps none of them
const rows = () => (list ? all(".row", list) : []);
const current = () => list && find(".row[aria-current]", list);
const rowOf = (call) => rows().find((row) => row.dataset.call === call);
const titleOf = (row) => find(".row-title", row);
const isListed = () => list?.checkVisibility();  // on a phone a call has the page for itself
const isFull = () => list.hasAttribute("data-more");
const isLeaving = (row) => row.classList.contains("leaving");
const isUsed = (row) => row === current() || row.contains(document.activeElement);

function move(step) {
  if (!isListed()) return say("There is no list of calls on this page.");
  const row = neighbour(step);
  if (!row) return say(`There is no call ${step > 0 ? "below" : "above"} this one.`);
  select(row);
}

function later() {
  const onward = find(".onward a");
  if (!isListed() && !onward) return say("There is no next call on this page.");
  if (isListed()) select(neighbour(1) ?? staying()[0]);
  else onward.click();
}

/* Open the call of a row; on a desk beside the list, at an address of its own. The list without a
 * call is no place to go back to. */
function select(row, { focus = true } = {}) {
  if (!row) return;
  mark(row);
  if (focus) titleOf(row).focus({ preventScroll: true });
  if (!isDesk()) return;
  const { href } = titleOf(row);
  if (!named()) history.replaceState(history.state, "", href);
  else if (named() !== row.dataset.call) history.pushState({ opened: opened() + 1 }, "", href);
  follow();
}

function mark(row) {
  current()?.removeAttribute("aria-current");
  row?.setAttribute("aria-current", "true");
  row?.scrollIntoView({ block: "nearest" });
}

/* The number of calls that were opened on this page before, to which back leads. */
const opened = () => history.state?.opened ?? 0;

/* The call that the address names, if any. */
const named = () => location.pathname.match(/^\/calls\/([\w-]+\/[\w-]+\/[\w-]+)$/)?.[1];

/* Show the call that the address names, beside the list. */
function follow() {
  const call = named();
  if (!list || !call) return;
  loading?.abort();
  mark(rowOf(call));
  if (article()?.dataset.call !== call) show(`/calls/${call}`);
}

const isPassed = (row) => isLeaving(row) || row.classList.contains("held");
const staying = () => rows().filter((row) => !isPassed(row) || row === current());
function neighbour(step) {
  const place = staying().indexOf(current());
  return staying()[place < 0 ? 0 : place + step];
}

function leave(row, text) {
  if (!row) return;
  if (!isLeaving(row)) {
    row.classList.add("leaving");
    row.dataset.until = Date.now() + STAYS_MS;
    row.append(Object.assign(document.createElement("p"), { className: "row-outcome" }));
    const box = find("input", row);
    box.checked = false;
    box.disabled = true;
    countSelected();
  }
  find(".row-outcome", row).textContent = text;
}

/* Take decided calls away. Rows do not move under the pointer, while a key is down, or while a form
 * is open. */
function sweep() {
  if (!list || down.size || openForm()) return;
  const pointer = rows().findIndex((row) => row.matches(":hover"));
  for (const row of rows().slice(pointer + 1).filter(isLeaving)) {
    const isLast = rows().length === 1;
    if (Date.now() < row.dataset.until || (isUsed(row) && !isLast)) continue;
    row.remove();
    if (isFull() || isLast) refresh();
  }
}

let refreshed = 0;
let refreshing;
function refresh() {
  if (!isListed()) return;
  clearTimeout(refreshing);
  refreshing = setTimeout(readList, Math.max(0, refreshed + REFRESH_MS - Date.now()));
}

async function readList() {
  refreshed = Date.now();
  const text = await fragment(`/${location.search}`).catch(() => null);
  if (text !== null) merge(parsed(text));
}

/* Make the list that of the server, without moving a row that stays. */
function merge(page) {
  const fresh = all("#calls .row", page);
  const listed = new Set(fresh.map((row) => row.dataset.call));
  list.toggleAttribute("data-more", find("#calls", page).hasAttribute("data-more"));
  for (const row of rows())
    if (!listed.has(row.dataset.call) && !isLeaving(row)) leave(row, "no longer waits here");
  for (const row of fresh) setBadges(rowOf(row.dataset.call), all(".badge", row));
  const came = fresh.filter((row) => !rowOf(row.dataset.call) && !gone.has(row.dataset.call));
  all(".group", list).forEach((heading) => heading.remove());
  let behind = null;
  for (const item of [...find("#calls", page).children].toReversed()) {  // in the server's order
    const here = rowOf(item.dataset.call);
    if (!here && gone.has(item.dataset.call)) continue;
    if (!here) list.insertBefore(item, behind), showTimes(item);
    behind = here ?? item;
  }
  const [first] = came;
  const word = first && find("[data-back]", first) ? "Back from later" : "New call";
  if (came.length === 1) announce(`${word}: ${titleOf(first).textContent.trim()}`);
  if (came.length > 1) announce(`${came.length} new calls`);
  undoing?.markHeld();
  find("#aside").replaceWith(find("#aside", page));
  awaitBack();
  find("#nothing").hidden = rows().length > 0;
  if (isDesk() && !named()) select(staying()[0], { focus: false });
}

function setBadges(row, badges) {
  if (!row) return;
  all(".badge", row).forEach((badge) => badge.remove());
  find(".row-head", row).append(...badges);
}

function countSelected() {
  const button = find("#decide-selected");
  if (!button) return;
  const count = all("#calls input:checked").length;
  button.hidden = !count;
  find("span", button).textContent = count;
}

let lastBox;  // the check box that was pressed last
/* A press with Shift selects all calls between the last one and this one, or none of them. */
function selectRange(box, isRange) {
  const boxes = all("#calls input:enabled");
  const [from, to] = [boxes.indexOf(lastBox), boxes.indexOf(box)].sort((a, b) => a - b);
  if (isRange && from >= 0)
    boxes.slice(from, to + 1).forEach((one) => { one.checked = box.checked; });
  lastBox = box;
}

function press(shiftKey) {
  const row = isListed() && current();
  if (!row) return say("No call is chosen in a list on this page.");
  find("input", row).dispatchEvent(new MouseEvent("click", { bubbles: true, shiftKey }));
}

function selectAll() {
  const boxes = isListed() ? all("#calls input:enabled") : [];
  const checked = !boxes.every((box) => box.checked);
  boxes.forEach((box) => { box.checked = checked; });
  countSelected();
  say(`Selected: ${checked ? boxes.length : 0}.`);
}

async function decideSelected() {
  const chosen = all("#calls input:checked").map((box) => ["call", box.value]);
  if (!chosen.length) return say("Nothing is selected. Select calls with x.");
  const path = `/bulk?${new URLSearchParams(chosen)}`;
  const text = await fragment(path, { isAsked: true }).catch(() => null);
  if (text === null) return;
  const dialog = find("#bulk");
  find("#bulk-content").innerHTML = text;
  htmx.process(dialog);
  enhance(dialog);
  dialog.showModal();
  find("h2", dialog).focus();
}

/* A vote of the visitor was recorded: their text is no longer needed, and the next call opens. */
function voted({ call }) {
  dropDrafts(`draft:${visitor}:/calls/${call}/`);
  announce(`Your vote on ${call} is recorded.`);
  refresh();
  goOn(call);
}

/* If the list still shows this call, show the next one. */
function goOn(call) {
  const row = rowOf(call);
  if (row && row === current() && isDesk()) select(neighbour(1) ?? neighbour(-1));
}

/* A line about what can be undone, the newest first. */
function lineOf(text, press) {
  const line = find("#held template").content.firstElementChild.cloneNode(true);
  find("span", line).textContent = text;
  find("button", line).addEventListener("click", press);
  find("#held").prepend(line);
  return line;
}

const undoLast = () =>
  (find("#held button:has(kbd)") ?? { click: () => say("Nothing can be undone.") }).click();

// Calls that are put aside until a time, in the reader's zone, and come back by themselves.

const until = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

function at(days, hour) {
  const time = new Date();
  time.setDate(time.getDate() + days);
  time.setHours(hour, 0, 0, 0);
  return time;
}

/* Offer those times that are neither near nor too late. */
function offerTimes(form) {
  const latest = form.dataset.latest ? new Date(form.dataset.latest) : Infinity;
  const soon = Date.now() + HOUR_MS;
  const times = { 1: soon, 2: at(0, 15), 3: at(1, 9) };
  for (const [key, time] of Object.entries(times)) {
    const button = find(`[data-key="${key}"]`, form);
    button.hidden = time > latest || time < soon;
    if (key > 1) button.value = time.toISOString();
  }
}

function snoozed({ call, until: time }) {
  const text = `Put aside until ${until.format(new Date(time))}: ${call}`;
  const line = lineOf(text, () => wake(call));
  setTimeout(() => line.remove(), ASIDE_MS);
  announce(`${text}. u undoes it.`);
  leave(rowOf(call), "put aside");
  refresh();
  countSoon();
  goOn(call);
}

async function wake(call) {
  const headers = { "HX-Request": "true", "Ayes-Visitor": visitor };
  const request = { method: "POST", headers, body: new FormData() };
  const answer = await fetch(`/calls/${call}/wake`, request).catch(() => null);
  if (answer?.ok) return location.assign(`/calls/${call}${location.search}`);
  if (answer?.status === 401) signInAgain();
  else unanswered("Try again.");
}

let waking;
/* Read the list again when the next call comes back. */
function awaitBack() {
  clearTimeout(waking);
  const { backS } = find("#aside")?.dataset ?? {};
  const back = () => { refresh(); countSoon(); };
  if (backS) waking = setTimeout(back, 1000 * Math.min(Number(backS) + 1, 86400));
}

// Votes that can be undone (undo.js), once a form allows it or an earlier page has left some.

const HELD = `held:${visitor}:`;
let undoing, starting;
function startUndoing() {
  const isNeeded = find("form[data-undo]") || Object.keys(localStorage).some((key) => key.startsWith(HELD));
  if (starting || !isNeeded) return;
  const given = {
    HELD, NO_ANSWER, all, announce, countSelected, find, goOn, isDesk, isLeaving, lineOf, parsed, rowOf,
    rows, say, select, signInAgain, visitor, voted,
  };
  starting = import(document.body.dataset.undoJs).then(
    ({ start }) => {
      undoing = start(given);
      const call = find("article.call");
      if (call) undoing.enhance(call);
    },
    () => {
      starting = null;
      unanswered("No vote can be held; try again.");
    },
  );
}

/* Whether the vote of this form is not to be sent now. */
function isHeld(form, button) {
  if (undoing) return undoing.hold(form, button);
  startUndoing();
  say(EARLY);
  return true;
}

// Characters that cannot be seen, spelled out.

const HIDDEN = /[^\P{C}\n\t]/gu;
const marked = (text) => text.replace(HIDDEN, (one) =>
  `U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`);

// Pages whose items change by themselves (live.js).

let live;
async function startLive() {
  const given = {
    all, announce, count, down, enhance, find, fragment, isPressed, marked, parsed, workspace,
  };
  try {
    live = (await import(document.body.dataset.liveJs)).start(given);
  } catch {
    unanswered("Load this page again, or nothing new comes.");
  }
}

// The box in which calls are searched: it suggests words (suggest.js).

const box = find("#search");
const search = () => { box?.focus(); box?.select(); };
let suggesting;
function startSuggesting() {
  suggesting ??= import(document.body.dataset.suggestJs).then(
    ({ start }) => start({ box, find, marked }),
    () => { suggesting = null; },
  );
}

if (find("[data-words]")) {
  for (const [name, value] of [["role", "combobox"], ["aria-autocomplete", "list"],
    ["aria-expanded", "false"], ["aria-controls", "suggestions"]]) box.setAttribute(name, value);
  box.addEventListener("focus", startSuggesting);
  if (document.activeElement === box) startSuggesting();
}

// Keys. They do nothing while somebody types, and Enter never approves.

const TYPED = "textarea, select, input:not([type=checkbox], [type=radio]), [contenteditable]";
const isTyping = (target) => target.matches(TYPED);

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  s: later,
  x: () => press(false),
  X: () => press(true),
  "*": selectAll,
  "[": pageBefore,
  "]": () => (find("a[rel=next]") ?? { click: () => say("There is no next page.") }).click(),
  a: () => act("a"),
  d: () => act("d"),
  e: () => act("e"),
  r: () => act("r"),
  ...Object.fromEntries([..."123456789"].map((key) => [key, () => act(key)])),
  u: undoLast,
  h: () => act("h"),
  c: () => act("c"),
  b: () => act("b"),
  A: decideSelected,
  g: () => { afterG = Date.now(); },
  "/": search,
  "?": () => find("#help").showModal(),
};

function act(key) {
  const shown = article();
  if (list && named() && shown?.dataset.call !== named()) return say(EARLY);
  if (!shown) return say("There is no call on this page.");
  const wanted = `[data-key="${key}"]`;
  const button = ["[open] ", ".decide ", ""].map((place) => find(place + wanted, shown)).find(Boolean);
  const isUnseen = button?.type === "submit" && !button.checkVisibility();
  if (!button || isUnseen) return say("You cannot do that with this call.");
  button.click();
  const { parentElement: part } = button;
  if (part.open) (find(TEXT, part) ?? find("form button", part))?.focus();
}

/* Write a reason of the rule into its form, below what somebody typed. */
function fill({ form, dataset }) {
  const field = find(TEXT, form);
  const isOffered = all("[data-reason]", form).some((one) => one.dataset.reason === field.value);
  form.closest("details").open = true;
  field.value = [isOffered ? "" : field.value.trim(), dataset.reason].filter(Boolean).join("\n");
  field.dispatchEvent(new Event("input", { bubbles: true }));
  field.focus();
}

/* Where the reader came from, else the first page. */
function pageBefore() {
  const path = list ? "/" : location.pathname;
  const first = new URL(path + location.search, location);
  for (const name of ["after", "before"]) first.searchParams.delete(name);
  if (first.search === location.search) return say("There is no page before this one.");
  if (document.referrer.startsWith(location.origin + path)) history.go(-1 - opened());
  else location.assign(first);
}

let afterG = 0;
function onKey(event) {
  const { key, target } = event;
  if (key === "Enter") return onEnter(event);
  if (key === "Escape") return closeForm(target);
  const isCommand = event.ctrlKey || event.metaKey || event.altKey;
  // With AltGr somebody types a bracket.
  if ((isCommand && !event.getModifierState("AltGraph")) || event.repeat) return;
  if (isTyping(target) || find("dialog[open]")) return;
  if (key !== "Shift" && Date.now() - afterG < 1500) {
    afterG = 0;
    event.preventDefault();
    const link = find(`[data-go="${CSS.escape(key)}"]`);
    return link ? link.click() : say(`No page has the letter ${key}.`);
  }
  if (!(key in KEYS) || (event.shiftKey && key !== key.toUpperCase())) {
    if (/^\p{L}$/u.test(key)) say(`The key ${key} does nothing. ? lists the keys.`);
    return;
  }
  event.preventDefault();
  KEYS[key]();
}

/* With Ctrl or Cmd it presses the one button of a form of a call; else it sends nothing. */
function onEnter(event) {
  const { target, ctrlKey, metaKey } = event;
  if (target.matches("[name=typed]")) event.preventDefault();  // a name has one line
  if ((ctrlKey || metaKey) && target.matches("article.call form :is(textarea, input)")) {
    event.preventDefault();
    if (!event.repeat) find(":scope > .actions > button", target.form)?.click();
    return;
  }
  if (target.closest("[data-key=a]")) {
    event.preventDefault();
    say("Enter never approves. Press a.");
  }
  if (!target.matches("#calls .row-title") || !isDesk()) return;
  event.preventDefault();
  article()?.focus();
}

function closeForm(target) {
  const open = target.closest("details.act[open], details.menu[open]");
  if (!open) return;
  open.open = false;
  find("summary", open).focus();
}

// The stream of events, and the state of the connection.

const TYPES = ["requested", "waiting", "voted", "decided", "started", "finished", "changed"];
let stream;
const looked = {};  // the call that the stream names, who else looks at it, and what is next
let heard = Date.now();
let position = document.body.dataset.seq;
let brokerIsUp = true;

/* The call that the reader looks at. The stream names it, so that others learn of it as long as the
 * stream is open. */
const looksAt = () => (document.hidden ? "" : article()?.dataset.call ?? "");

/* Connect anew when the reader has looked at another call for a moment. */
function followLook() {
  const call = looksAt();
  if (call === looked.call) return showLooking();
  if (call !== looked.next) Object.assign(looked, { next: call, since: Date.now() });
  if (Date.now() - looked.since < LOOKED_MS || stream.readyState !== EventSource.OPEN) return;
  stream.close();
  connect();
}

/* Say who else looks at the call that is shown. */
function showLooking() {
  const { call, people } = looked;
  const shown = article();
  const line = shown?.dataset.call === call && find(".looking", shown);
  const text = people.length ? `${people.join(" and ")} ${people.length > 1 ? "are" : "is"} looking at this call too` : "";
  if (line && line.textContent !== text) line.textContent = text;
}

function connect() {
  Object.assign(looked, { call: looksAt(), people: [] });
  const query = new URLSearchParams();
  if (position) query.set("after", position);
  if (looked.call) query.set("shown", looked.call);
  stream = new EventSource(`/api/v1/events?${query}`);
  stream.addEventListener("looking", (event) => {
    hear();
    looked.people = JSON.parse(event.data).people;
    showLooking();
  });
  stream.addEventListener("open", () => {
    hear();
    refresh();
    find("#messages a[href^='/sign-in']")?.parentElement.remove();  // somebody has signed in
  });
  stream.addEventListener("error", () => {
    lost(LOST);
    if (stream.readyState !== EventSource.CLOSED) return;  // the browser connects again
    setTimeout(connect, 2000);
    count();
  });
  stream.addEventListener("broker", (event) => {
    const wasUp = brokerIsUp;
    brokerIsUp = JSON.parse(event.data).broker === "up";
    hear(event);
    if (!brokerIsUp) lost("The broker is away. Votes have to wait until it is back.");
    else if (!wasUp) refresh();
  });
  stream.addEventListener("listed", () => {
    hear();
    if (list && !isFull()) refresh();
    recount();
  });
  stream.addEventListener("reset", (event) => {
    hear(event);
    refresh();
    recount();
    if (article() && !openForm()) reload(article());
    live?.reset();
  });
  for (const type of TYPES) stream.addEventListener(type, (event) => happened(type, event));
}

function hear(event) {
  heard = Date.now();
  position = event?.lastEventId || position;
  if (brokerIsUp) find("#connection").textContent = "";
}

function lost(text) {
  const line = find("#connection");
  if (line.textContent !== text) line.textContent = text;
}

function happened(type, { data, lastEventId }) {
  hear({ lastEventId });
  const event = { ...JSON.parse(data), type };
  if (event.call) {
    if (event.seq <= newest.get(event.call)?.seq) return;
    newest.set(event.call, event);
    if (type === "decided") {
      undoing?.decided(event.call, outcome(event));
      gone.add(event.call);
      leave(rowOf(event.call), outcome(event));
    }
    update();
  }
  live?.happened(event);
  recount();
}

/* A function that has `read` called soon, and at most this often. */
function seldom(ms, read) {
  let last = 0;
  let next;
  return () => {
    next ??= setTimeout(() => {
      last = Date.now();
      next = null;
      read();
    }, Math.max(0, last + ms - Date.now()));
  };
}

const countSoon = seldom(COUNT_MS, count);
const countViewsSoon = seldom(VIEWS_MS, countViews);

/* Ask for the numbers of the header, all together, so that none contradicts another. After events
 * too: the list may have changed before the page was told of such changes. */
function recount() {
  countSoon();
  if (find("[data-view]")) countViewsSoon();
}

async function countViews() {
  const answer = await fetch(`/api/v1/views?${new URLSearchParams({ workspace })}`).catch(() => null);
  if (!answer?.ok) return countViewsSoon();
  for (const { author, name, waiting } of (await answer.json()).views) {
    const badge = all("[data-view]").find(({ dataset }) =>
      dataset.author === author && dataset.view === name);
    if (badge) Object.assign(badge, { textContent: waiting, hidden: waiting === null });
  }
}

async function count() {
  const path = `/api/v1/counts?${new URLSearchParams({ workspace })}`;
  const answer = await fetch(path).catch(() => null);
  if (answer?.status === 401) return signInAgain();
  if (!answer?.ok) return isUnanswered() && countSoon();
  answered();
  showCounts(await answer.json());
}

function showCounts(counts) {
  for (const badge of all("[data-count]"))
    badge.textContent = counts[badge.dataset.count] ?? badge.textContent;
  const stopped = find("#stopped");
  if (stopped && counts.stopped) {
    stopped.hidden = !counts.stopped.length;
    const [where, until] = all("span", stopped);
    where.textContent = counts.stopped.join(", ").replace("_organisation", "all workspaces");
    until.hidden = !counts.stopped_until;
    if (counts.stopped_until) {
      Object.assign(find("time", until), { dateTime: counts.stopped_until, title: "" });
      showTimes(until);
    }
  }
  const titled = (old, name, word) => name + (counts[word.toLowerCase()] ?? old.slice(name.length));
  document.title = document.title.replace(/^((?:In )?(Waiting|Mine|doubt) )\d+/, titled);
}

// The pointer, and forms.

const ACTIONS = {
  theme() {
    const chosen = root.dataset.theme;
    const isDark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    document.cookie = `theme=${root.dataset.theme}; Path=/; Max-Age=31536000; SameSite=Strict`;
  },
  help: () => find("#help").showModal(),
  close(button, event) {
    const dialog = button.closest("dialog");
    if (!dialog) return;  // it is a link, too
    event.preventDefault();
    dialog.close();
  },
};

function onClick(event) {
  const target = event.target;
  const shown = target.closest("[data-key]")?.closest("article.call");
  if (shown && !shown.hasAttribute("data-ready")) {
    event.preventDefault();
    say(EARLY);
    return event.stopImmediatePropagation();
  }
  if (shown && target.closest("[data-key=a]") && !isInSight(shown)) {
    event.preventDefault();
    find("[data-values]", shown).scrollIntoView();
    say("Read what would run, and press again.");
    return event.stopImmediatePropagation();
  }
  for (const menu of all("details.menu[open]")) if (!menu.contains(target)) menu.open = false;
  if (target.closest("[data-key=s]")) KEYS.s();
  if (target.matches("#calls input")) selectRange(target, event.shiftKey);
  const action = target.closest("[data-action]");
  if (action) ACTIONS[action.dataset.action](action, event);
  const reason = target.closest("[data-reason]");
  if (reason) fill(reason);
  const column = target.closest("[data-sort]");
  if (column) sort(column);
  const fold = target.closest("[data-rows]");
  if (fold) fold.hidden = fold.parentElement.classList.toggle("open");
  const copy = target.closest("[data-copy]");
  if (copy) copyText(find(copy.dataset.copy).textContent);
  const link = target.closest("#calls .row-title");
  if (!link || !isDesk() || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  select(link.closest(".row"));
}

/* Whether the first of the values that would run is above the buttons, or was scrolled past. */
function isInSight(shown) {
  const value = find("[data-values] :is(dt, th, pre)", shown);
  return !value || value.getBoundingClientRect().bottom <= find(".decide", shown).getBoundingClientRect().top;
}

function sort(column) {
  import(document.body.dataset.sortJs)
    .then(({ sortRows }) => sortRows(column), () => unanswered("Try again."));
}

async function copyText(text) {
  await navigator.clipboard.writeText(text);
  announce("Copied");
}

/* A form is sent once: its buttons wait for the answer. */
function onSubmit(event) {
  const form = event.target;
  if (form.id === "selection") {
    event.preventDefault();
    return decideSelected();
  }
  if (form.matches(".search"))  // of what is empty, only the query need stand in the address
    for (const field of form.elements) field.disabled = field.name && field.name !== "q" && !field.value;
  if (form.getAttribute("method") !== "post") return;
  if (form.dataset.sent || (form.dataset.undo && isHeld(form, event.submitter))) {
    event.preventDefault();
    return event.stopImmediatePropagation();
  }
  form.dataset.sent = "yes";
  if (form.getAttribute("action") === "/sign-out") ["draft:", "held:"].forEach(dropDrafts);
  if (!form.hasAttribute("hx-post")) sessionStorage.setItem("sent", draftsOf(form));
  // The browser reads the pressed button first.
  setTimeout(() => all("button", form).forEach((button) => { button.disabled = true; }));
}

function release(form) {
  if (!form?.dataset.sent) return;
  delete form.dataset.sent;
  all("button", form).forEach((button) => { button.disabled = false; });
}

const releasePointer = () => setTimeout(() => down.delete("pointer"), SHOWN_FOR_MS);
addEventListener("blur", () => down.clear());
document.addEventListener("pointerdown", () => down.add("pointer"));
document.addEventListener("pointerup", releasePointer);
document.addEventListener("pointercancel", releasePointer);
addEventListener("popstate", follow);
addEventListener("pageshow", ({ persisted }) => {
  if (persisted) location.reload();  // the browser kept a page that is old by now
});
document.addEventListener("click", onClick, true);
document.addEventListener("toggle", ({ target }) => {
  all("form[data-latest]", target).forEach(offerTimes);
}, true);
document.addEventListener("submit", onSubmit, true);
document.addEventListener("input", ({ target }) => keepDraft(target));
document.addEventListener("change", ({ target }) => {
  countSelected();
  if (target.matches("[data-sends]")) target.form.requestSubmit();
});
document.addEventListener("keydown", (event) => { down.add(event.code); onKey(event); });
document.addEventListener("keyup", ({ key, code }) => {
  if (key === "Meta") down.clear();  // a Mac does not report other keys that go up meanwhile
  else down.delete(code);
});
// Refused when somebody else has signed in meanwhile: this page shows what its reader may do.
document.body.addEventListener("htmx:configRequest", ({ detail }) => {
  if (visitor) detail.headers["Ayes-Visitor"] = visitor;
  const time = find("[type=datetime-local]", detail.elt);
  if (time) detail.parameters[time.name] = new Date(time.value).toISOString();
});
document.body.addEventListener("htmx:afterSwap", ({ target }) => enhance(target));
document.body.addEventListener("htmx:afterRequest", (event) => {
  const form = event.detail.elt.closest("form");
  release(form);
  if (event.detail.successful) answered();
  // Those of a call are needed until its vote is recorded.
  if (form && event.detail.successful && !form.closest("article.call")) dropDrafts(draftsOf(form));
});
document.body.addEventListener("htmx:sendError", () =>
  unanswered("What you typed is kept; try again."));
document.body.addEventListener("ayes:voted", ({ detail }) => voted(detail));
document.body.addEventListener("ayes:snoozed", ({ detail }) => snoozed(detail));
document.body.addEventListener("ayes:taken", ({ detail }) =>
  dropDrafts(`draft:${visitor}:${detail.path}:`));

// Votes that a passkey signs, and passkeys that are made (passkeys.js).
function offerPasskeys(part) {
  if (!find("[data-passkey]", part)) return;
  import(document.body.dataset.passkeysJs).then(({ offer }) => offer(part), () => unanswered("Try again."));
}

// It fails if the page is left while the script is fetched; the next page registers it.
navigator.serviceWorker?.register("/service-worker.js").catch(() => {});
if (window.Notification?.permission === "granted") import(document.body.dataset.pushJs);
if (find("[data-live]")) await startLive();
settleSent();
enhance(document);
if (list) {
  countSelected();
  awaitBack();
  if (named()) follow();
  else if (isDesk()) select(neighbour(1), { focus: false });
}
if (visitor) {
  connect();
  setInterval(() => {
    sweep();
    update();
    live?.tick();
    followLook();
    if (Date.now() - heard > SILENT_MS) lost(LOST);
  }, 250);
  setInterval(() => showTimes(), 10_000);
}
