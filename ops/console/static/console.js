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

document.documentElement.classList.add("js");
