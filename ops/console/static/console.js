/* The behaviour of the pages. Every page works without it, but for what only a script can do:
 * keys, live changes, and keeping what was typed.
 *
 * What a template says to it:
 *
 *   <article class="call" data-call="w/t/c" data-status="pending">   the call that is shown
 *   data-key="a|e|d|r"    on the button or summary that the key presses. A form that collects text
 *                         stands in <details class="act">; its summary has the key
 *   hx-post, hx-target="closest article.call", hx-swap="outerHTML"   on the forms in the article,
 *                         beside method and action. A vote that was taken is answered with the
 *                         header HX-Trigger: {"ayes:voted": {"call": "w/t/c", "verdict": "approve"}},
 *                         and the next call opens; anything else replaces the article
 *   data-go="w"           on the link that `g w` follows
 *   data-copy="#id"       on a button that copies the text of this element
 *   <time datetime="…">   becomes relative, with the absolute time as tooltip
 *   hx-trigger="ayes:changed from:body throttle:1s"   each event of /api/v1/events is also an event
 *                         `ayes:<type>` of the body, with its data as `detail`
 *
 * In each post form, text survives a reload and a new sign-in, until its request has been taken.
 * Buttons with data-key do nothing until the article has been shown for a moment (then it has the
 * attribute data-ready), so that a double click or a key pressed twice does not decide the next call.
 */

const root = document.documentElement;
root.classList.add("js");

const SHOWN_FOR_MS = 350;     // before a button of a call takes a press
const STAYS_MS = 3000;        // how long a decided call stays in the list
const SILENT_MS = 4500;       // without a heartbeat, of which one comes every 2 s, it is lost
const REFRESH_MS = 500;       // the list is read at most this often

const find = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const asFragment = { headers: { "HX-Request": "true" } };
const visitor = document.body.dataset.visitor;
const list = find("#calls");
const detail = find("#detail");
const isDesk = () => detail && matchMedia("(min-width: 48.01rem)").matches;

// What is said, and to whom.

function announce(text) {
  const line = find("#announcer");
  line.textContent = line.textContent === text ? `${text}\u00a0` : text;
}

function message(text, link) {
  const line = document.createElement("p");
  line.className = "problem";
  line.setAttribute("role", "alert");
  line.append(text);
  if (link) line.append(" ", Object.assign(document.createElement("a"), link));
  find("#messages").replaceChildren(line);
}

function signInAgain() {
  const next = encodeURIComponent(location.pathname + location.search + location.hash);
  message("Your session has ended. What you typed is kept.", {
    href: `/sign-in?next=${next}`, textContent: "Sign in again",
  });
}

/* A part of a page; null if there is none, and the reason stands above the page. */
async function fragment(path, options = {}) {
  const answer = await fetch(path, { ...asFragment, ...options });
  if (answer.status === 401 || new URL(answer.url).pathname === "/sign-in") return signInAgain(), null;
  const text = await answer.text();
  if (answer.ok) return text;
  const parsed = new DOMParser().parseFromString(text, "text/html");
  message(find(".problem", parsed)?.textContent.trim() || `${path} answered ${answer.status}.`);
  return null;
}

// Times: relative, in the reader's zone.

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
const absolute = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

function relative(at, now = Date.now()) {
  const seconds = Math.round((at - now) / 1000);
  const size = Math.abs(seconds);
  if (size < 5) return "now";
  const [length, unit] = UNITS.find(([length]) => size >= length);
  const text = `${Math.floor(size / length)}\u00a0${unit}`;
  return seconds < 0 ? `${text} ago` : `in ${text}`;
}

function showTimes(within = document) {
  for (const time of all("time[datetime]", within)) {
    const at = new Date(time.dateTime);
    time.title ||= absolute.format(at);
    const text = relative(at);
    if (time.textContent !== text) time.textContent = text;
  }
}

// Drafts: typed text outlives a reload, a lost connection and a session that has ended.

const isText = (field) =>
  field.matches("textarea, select, input:not([type]), input[type=text]") && field.form?.method === "post";
const draftPrefix = (form) => `draft:${visitor}:${form.getAttribute("action")}:`;
const draftKey = (field) => draftPrefix(field.form) + field.name;

function keepDraft(field) {
  if (isText(field)) sessionStorage.setItem(draftKey(field), field.value);
}

function restoreDrafts(within = document) {
  for (const field of all("textarea, select, input", within).filter(isText)) {
    const kept = sessionStorage.getItem(draftKey(field));
    if (kept === null || kept === field.value) continue;
    field.value = kept;
    for (let parent = field.closest("details"); parent; parent = parent.parentElement.closest("details"))
      parent.open = true;
  }
}

function dropDrafts(prefix) {
  for (const key of Object.keys(sessionStorage)) if (key.startsWith(prefix)) sessionStorage.removeItem(key);
}

/* A form was sent without htmx: its drafts go once a page without a problem has come back. */
function settleSent() {
  const sent = sessionStorage.getItem("sent");
  if (!sent) return;
  sessionStorage.removeItem("sent");
  if (visitor && !find("main [role=alert]")) dropDrafts(sent);
}

// The call that is shown.

const article = () => find("article.call");
const openForm = () => find("article.call details.act[open], dialog[open]");

function enhance(within) {
  showTimes(within);
  restoreDrafts(within);
  const call = within.matches?.("article.call") ? within : find("article.call", within);
  if (call) call.tabIndex = -1;
  if (call) setTimeout(() => call.setAttribute("data-ready", ""), SHOWN_FOR_MS);
}

let loading;
async function show(path) {
  loading?.abort();
  loading = new AbortController();
  detail.setAttribute("aria-busy", "true");
  try {
    const text = await fragment(path, { signal: loading.signal });
    if (text === null) return;
    detail.innerHTML = text;
    htmx.process(detail);
    enhance(detail);
    detail.scrollIntoView({ block: "nearest" });
    detail.removeAttribute("aria-busy");
  } catch (problem) {
    if (problem.name !== "AbortError") message("The console does not answer. It is tried again.");
  }
}

async function reload(call) {
  const text = await fragment(`/calls/${call.dataset.call}?pane=1`);
  if (text === null || !call.isConnected || openForm()) return;
  const parsed = new DOMParser().parseFromString(text, "text/html");
  const fresh = find("article.call", parsed);
  if (!fresh) return;
  call.replaceWith(fresh);
  htmx.process(fresh);
  enhance(fresh);
}

/* Something happened to the call that is shown. What somebody is typing stays as it is. */
function callChanged({ call, status, by, type }) {
  const shown = article();
  if (shown?.dataset.call !== call) return;
  if (!openForm()) return reload(shown);
  let notice = find(".live-notice", shown);
  if (!notice) {
    notice = document.createElement("p");
    notice.className = "notice live-notice";
    notice.setAttribute("role", "status");
    shown.prepend(notice);
  }
  notice.textContent = `${outcome({ status, by, type })}. What you typed is kept.`;
}

const outcome = ({ status, by, type }) =>
  type === "voted" ? `Voted on by ${by}` : `${status.replaceAll("_", " ")}${by ? ` by ${by}` : ""}`;

// The list of waiting calls.

const rows = () => (list ? all(".row", list) : []);
const current = () => list && find(".row[aria-current]", list);
const rowOf = (call) => rows().find((row) => row.dataset.call === call);
const gone = new Set();        // decided: a list that is read late does not bring them back
const held = new Set();        // the keys that are down

/* Rows do not move under the pointer, while a key is down, or while a form is open. */
const mayMove = () => !held.size && !openForm() && !list.matches(":hover");

function select(row, { focus = true } = {}) {
  if (!row) return;
  current()?.removeAttribute("aria-current");
  row.setAttribute("aria-current", "true");
  row.scrollIntoView({ block: "nearest" });
  if (focus) find(".row-title", row).focus({ preventScroll: true });
  if (!isDesk()) return;
  history.replaceState(history.state, "", `#${row.dataset.call}`);
  return show(`${find(".row-title", row).getAttribute("href")}?pane=1`);
}

function neighbour(step) {
  const staying = rows().filter((row) => !row.classList.contains("leaving") || row === current());
  const place = staying.indexOf(current());
  return place < 0 ? staying[0] : staying[place + step];
}

function leave(row, text) {
  if (!row || row.classList.contains("leaving")) return;
  row.classList.add("leaving");
  row.dataset.until = Date.now() + STAYS_MS;
  const line = document.createElement("p");
  line.className = "row-outcome";
  line.textContent = text;
  row.append(line);
  const box = find("input[type=checkbox]", row);
  if (box) box.checked = false, box.disabled = true;
  countSelected();
}

const isUsed = (row) => row === current() || row.contains(document.activeElement);

function sweep() {
  if (!list || !mayMove()) return;
  for (const row of all(".row.leaving", list)) {
    const isLast = rows().length === 1;
    if (Date.now() < row.dataset.until || (!isLast && isUsed(row))) continue;
    row.remove();
    if (list.dataset.more || !rows().length) refresh();
  }
}

let refreshed = 0, refreshing;
function refresh(after_ms = 0) {
  if (!list) return;
  clearTimeout(refreshing);
  refreshing = setTimeout(readList, Math.max(after_ms, refreshed + REFRESH_MS - Date.now()));
}

async function readList() {
  refreshed = Date.now();
  const text = await fragment(location.pathname + location.search).catch(() => null);
  if (text === null) return;
  const fresh = find("#calls", new DOMParser().parseFromString(text, "text/html"));
  if (!fresh) return location.reload();
  merge(fresh);
}

/* Make the list that of the server, without moving a row that stays. */
function merge(fresh) {
  list.dataset.more = fresh.dataset.more;
  const known = new Map(rows().map((row) => [row.dataset.call, row]));
  const listed = new Set();
  const came = [];
  for (const row of all(".row", fresh)) {
    const call = row.dataset.call;
    listed.add(call);
    if (known.has(call) || gone.has(call)) continue;
    const behind = rows().find((one) => Number(one.dataset.seq) > Number(row.dataset.seq));
    list.insertBefore(row, behind ?? null);
    showTimes(row);
    came.push(row);
  }
  for (const [call, row] of known) if (!listed.has(call)) leave(row, "no longer waits here");
  if (came.length === 1) announce(`New: ${find(".row-title", came[0]).textContent.trim()}`);
  if (came.length > 1) announce(`${came.length} new calls`);
  find("#nothing").hidden = rows().length > 0;
  if (isDesk() && !article() && rows().length) select(neighbour(1), { focus: false });
}

function countSelected() {
  const button = find("#decide-selected");
  if (!button) return;
  const count = all(".row-select:checked").length;
  button.hidden = !count;
  find("span", button).textContent = count;
}

async function decideSelected() {
  const chosen = all(".row-select:checked");
  if (!chosen.length) return announce("Nothing is selected. Select calls with x.");
  const text = await fragment(`/bulk?${new URLSearchParams(chosen.map((box) => ["call", box.value]))}`);
  if (text === null) return;
  const dialog = find("#bulk");
  find("#bulk-content").innerHTML = text;
  htmx.process(dialog);
  enhance(dialog);
  dialog.showModal();
  find("h2", dialog)?.focus();
}

/* The visitor's own vote was taken: what they typed is no longer needed, and the next call opens. */
function voted({ call }) {
  dropDrafts(`draft:${visitor}:/calls/${call}/`);
  refresh();
  const row = rowOf(call);
  if (!row || !isDesk()) return;
  const next = neighbour(1) ?? neighbour(-1);
  announce(`Your vote on ${call} is recorded.`);
  if (next && next !== row) select(next);
}

// Keys. They do nothing while somebody types, and Enter never approves.

const isTyping = (target) =>
  target.isContentEditable || target.matches("textarea, select, input:not([type=checkbox], [type=radio])");

let afterG = 0;
const KEYS = {
  j: () => select(neighbour(1)),
  k: () => select(neighbour(-1)),
  s: () => select(neighbour(1) ?? rows()[0]),
  x: () => find(".row-select", current() ?? document.createElement("i"))?.click(),
  A: decideSelected,
  "/": () => {
    const field = find("main input[type=search]") ?? find("#search");
    field.closest("details")?.setAttribute("open", "");
    field.focus();
  },
  "?": () => find("#help").showModal(),
  g: () => { afterG = Date.now(); },
  Enter: () => article()?.focus(),
};

function act(key) {
  const shown = article();
  if (!shown || (current() && shown.dataset.call !== current().dataset.call)) return;
  const button = find(`[data-key="${key}"]`, shown);
  if (!button) return announce("This call does not offer that.");
  button.click();
  if (button.matches("summary") && shown.hasAttribute("data-ready"))
    find("textarea, input:not([type=hidden]), select", button.parentElement)?.focus();
}

function onKey(event) {
  const { key, target } = event;
  if (key === "Enter" && target.closest?.("[data-key=a]")) return event.preventDefault();
  if (key === "Escape") return closeForm(event);
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || isTyping(target)) return;
  if (find("dialog[open]")) return;
  if (Date.now() - afterG < 1500) {
    afterG = 0;
    find(`[data-go="${CSS.escape(key)}"]`)?.click();
    return event.preventDefault();
  }
  if (key === "Enter") return target.matches(".row-title") && isDesk() && (event.preventDefault(), KEYS.Enter());
  const does = "aedr".includes(key) && !event.shiftKey ? () => act(key) : KEYS[key];
  if (!does) return;
  event.preventDefault();
  does();
}

function closeForm(event) {
  const open = event.target.closest?.("details.act[open], details.menu[open]");
  if (!open) return;
  open.open = false;
  find("summary", open).focus();
}

// The stream of events, and the state of the connection.

const TYPES = ["requested", "waiting", "voted", "decided", "started", "finished", "changed"];
let stream, heard = Date.now(), position = "", brokerIsUp = true;

function connect() {
  stream?.close();
  stream = new EventSource(`/api/v1/events${position ? `?after=${position}` : ""}`);
  stream.addEventListener("open", () => { alive(); refresh(); });
  stream.addEventListener("error", () => {
    lost("The connection is lost. It is tried again; nothing needs to be done.");
    if (stream.readyState === EventSource.CLOSED) setTimeout(connect, 2000), count();
  });
  stream.addEventListener("broker", (event) => {
    const wasUp = brokerIsUp;
    brokerIsUp = JSON.parse(event.data).broker === "up";
    position = event.lastEventId || position;
    alive();
    if (!brokerIsUp) lost("The broker is away. Votes have to wait until it is back.");
    else if (!wasUp) refresh();
  });
  stream.addEventListener("listed", () => { alive(); refresh(); countSoon(); });
  stream.addEventListener("reset", () => { alive(); refresh(); article() && callChanged(article().dataset); });
  for (const type of TYPES) stream.addEventListener(type, (event) => happened(type, event));
}

function alive() {
  heard = Date.now();
  if (brokerIsUp) find("#connection").textContent = "";
}

function lost(text) {
  const line = find("#connection");
  if (line.textContent !== text) line.textContent = text;
}

const newest = new Map();      // by call: an event that comes late does not move a call back
function happened(type, event) {
  alive();
  position = event.lastEventId || position;
  const found = { ...JSON.parse(event.data), type };
  if (found.call && found.as_of < (newest.get(found.call) ?? 0)) return;
  if (found.call) newest.set(found.call, found.as_of);
  htmx.trigger(document.body, `ayes:${type}`, found);
  if (type === "decided") {
    gone.add(found.call);
    leave(rowOf(found.call), outcome(found));
  }
  if (found.call) callChanged(found);
  countSoon();
}

let counting;
function countSoon() {
  counting ??= setTimeout(() => { counting = null; count(); }, REFRESH_MS / 2);
}

async function count() {
  const workspace = new URLSearchParams(location.search).get("workspace") ?? "";
  const answer = await fetch(`/api/v1/counts?${new URLSearchParams({ workspace })}`).catch(() => null);
  if (answer?.status === 401) return signInAgain();
  if (!answer?.ok) return;
  const counts = await answer.json();
  for (const badge of all("[data-count]")) badge.textContent = counts[badge.dataset.count] ?? "";
  document.title = document.title.replace(/^(Waiting|Mine) \d+/, (_, word) => `${word} ${counts[word.toLowerCase()]}`);
}

// What people do with the pointer, and with forms.

const ACTIONS = {
  theme() {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    document.cookie = `theme=${root.dataset.theme}; Path=/; Max-Age=31536000; SameSite=Strict`;
  },
  help: () => find("#help").showModal(),
  close: (button) => button.closest("dialog").close(),
};

function onClick(event) {
  const target = event.target;
  const key = target.closest("article.call [data-key]");
  if (key && !key.closest("article.call").hasAttribute("data-ready")) {
    event.preventDefault();
    return event.stopImmediatePropagation();
  }
  for (const menu of all("details.menu[open]")) if (!menu.contains(target)) menu.open = false;
  const action = target.closest("[data-action]");
  if (action) return ACTIONS[action.dataset.action]?.(action);
  const copy = target.closest("[data-copy]");
  if (copy) return navigator.clipboard.writeText(find(copy.dataset.copy).textContent).then(() => announce("Copied"));
  if (target.closest("#decide-selected")) return event.preventDefault(), decideSelected();
  const link = target.closest("#calls .row-title");
  if (link && isDesk() && !(event.ctrlKey || event.metaKey || event.shiftKey)) {
    event.preventDefault();
    select(link.closest(".row"));
  }
}

/* A form is sent once: its buttons wait for the answer. */
function onSubmit(event) {
  const form = event.target;
  if (form.getAttribute("method")?.toLowerCase() !== "post") return;
  if (form.dataset.sent) {
    event.preventDefault();
    return event.stopImmediatePropagation();
  }
  form.dataset.sent = "yes";
  if (form.action.endsWith("/sign-out")) dropDrafts("draft:");
  if (!form.hasAttribute("hx-post")) sessionStorage.setItem("sent", draftPrefix(form));
  setTimeout(() => all("button", form).forEach((button) => { button.disabled = true; }));
}

function release(form) {
  if (!form?.dataset?.sent) return;
  delete form.dataset.sent;
  all("button", form).forEach((button) => { button.disabled = false; });
}

document.addEventListener("click", onClick, true);
document.addEventListener("submit", onSubmit, true);
document.addEventListener("input", (event) => keepDraft(event.target));
document.addEventListener("change", (event) => event.target.matches(".row-select") && countSelected());
document.addEventListener("keydown", (event) => { held.add(event.code); onKey(event); });
document.addEventListener("keyup", (event) => (event.key === "Meta" ? held.clear() : held.delete(event.code)));
addEventListener("blur", () => held.clear());
addEventListener("pageshow", () => all("form[data-sent]").forEach(release));
document.body.addEventListener("htmx:afterRequest", (event) => release(event.detail.elt.closest("form")));
document.body.addEventListener("htmx:sendError", () => message("The console does not answer. What you typed is kept; try again."));
document.body.addEventListener("htmx:afterSwap", (event) => enhance(event.target));
document.body.addEventListener("ayes:voted", (event) => voted(event.detail));

settleSent();
enhance(document);
if (list) {
  countSelected();
  if (isDesk()) select(rowOf(decodeURIComponent(location.hash.slice(1))) ?? rows()[0], { focus: false });
}
if (visitor) {
  connect();
  setInterval(() => {
    sweep();
    if (Date.now() - heard > SILENT_MS) lost("The connection is lost. It is tried again; nothing needs to be done.");
  }, 250);
  setInterval(showTimes, 10_000);
}
