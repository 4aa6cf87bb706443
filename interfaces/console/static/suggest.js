/* The words that the box in which calls are searched suggests. console.js starts this once somebody
 * is in the box.
 */

const MOST = 8;  // suggestions at once

export function start({ box, find, marked }) {
  const choices = Object.assign(document.createElement("ul"), { id: "suggestions", hidden: true });
  const known = readWords(box.closest("[data-words]").dataset);  // the words that can be suggested

  const quoted = (name) =>
    /[\s"]|^$/.test(name) ? `"${name.replaceAll(/["\\]/g, "\\$&")}"` : name;

  async function readWords({ words, names }) {
    const answer = await fetch(names).catch(() => null);
    const used = answer?.ok ? Object.entries(await answer.json()) : [];
    return [...words.split(" "),
      ...used.flatMap(([key, of]) => of.map((name) => `${key}:${quoted(name)}`))];
  }

  /* The word before the cursor, without its minus: where it begins, and its text. */
  function typedWord() {
    const [, word] = box.value.slice(0, box.selectionStart).match(/-?((?:"[^"]*"?|\S)*)$/);
    return { begin: box.selectionStart - word.length, word };
  }

  async function suggest() {
    const offered = await known;
    const word = typedWord().word.toLowerCase();
    const fits = (one) => one.toLowerCase().includes(word) && one.toLowerCase() !== word;
    const found = word ? offered.filter(fits) : offered;
    choices.replaceChildren(...found.slice(0, MOST).map((one, number) => Object.assign(
      document.createElement("li"), { role: "option", id: `suggestion-${number}`,
        textContent: marked(one), ariaSelected: "false", word: one })));
    offer(found.length > 0 && document.activeElement === box);
  }

  function offer(isOpen) {
    choices.hidden = !isOpen;
    box.ariaExpanded = String(isOpen);
    box.removeAttribute("aria-activedescendant");
  }

  function point(step) {
    const options = [...choices.children];
    const before = options.findIndex((one) => one.ariaSelected === "true");
    if (before >= 0) options[before].ariaSelected = "false";
    const option = options[(before < 0 && step < 0 ? options.length : before) + step];
    if (!option) return box.removeAttribute("aria-activedescendant");
    option.ariaSelected = "true";
    box.setAttribute("aria-activedescendant", option.id);
  }

  function take(option) {
    const { begin } = typedWord();
    box.setRangeText(option.word + (/[:<>]$/.test(option.word) ? "" : " "),
      begin, box.selectionStart, "end");
    offer(false);
  }

  function onBoxKey(event) {
    const { key } = event;
    const pointed = choices.hidden ? null : find("[aria-selected=true]", choices);
    if (key === "ArrowDown" || key === "ArrowUp") {
      if (choices.hidden) suggest();
      else point(key === "ArrowDown" ? 1 : -1);
    } else if ((key === "Enter" || key === "Tab") && pointed) take(pointed);
    else if (key === "Escape" && !choices.hidden) offer(false);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  choices.setAttribute("role", "listbox");
  choices.ariaLabel = "Suggestions";
  box.after(choices);
  box.addEventListener("keydown", onBoxKey);
  box.addEventListener("input", suggest);
  box.addEventListener("focus", suggest);
  box.addEventListener("blur", () => offer(false));
  choices.addEventListener("pointerdown", (event) => {
    event.preventDefault();  // the box keeps the focus
    if (event.target.word) take(event.target);
  });
  suggest();
}
