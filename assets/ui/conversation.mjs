/** Conversations in OpenAI's format, by author, with thinking and tool calls folded. */

import { h, setText, show } from './dom.mjs';
import { number, plural } from './format.mjs';
import { oneLine, visible } from './text.mjs';

/** Characters of a text that are shown before the reader asks for more. */
const SHOWN = 12_000;
/** Tool results longer than this are folded. */
const FOLDED = 600;

/** A conversation that may grow: what is already shown keeps its folds and the reader's selection. */
export class ConversationView {
  /** @type {string[]} The shown messages as JSON. */
  #shown = [];

  constructor() {
    this.title = h('h2');
    this.tools = h('div');
    this.messages = h('div', { class: 'conversation' });
    this.element = h('section', {}, this.title, this.tools, this.messages);
  }

  /**
   * @param {{ tools: any[], messages: any[] }} conversation
   * @param {string} title Empty if there is only one.
   */
  set({ tools, messages }, title) {
    setText(this.title, title);
    show(this.title, title !== '');
    if (this.tools.childElementCount === 0 && tools.length > 0) this.tools.append(offered(tools));
    const texts = messages.map((message) => JSON.stringify(message));
    const same = texts.findIndex((text, index) => text !== this.#shown[index]);
    const kept = same < 0 ? texts.length : same;
    while (this.messages.childElementCount > kept) this.messages.lastElementChild?.remove();
    this.messages.append(...messages.slice(kept).map(messageView));
    this.#shown = texts;
  }
}

/**
 * Text of a message's content, which is a string or a list of parts. Pure.
 * @param {any} content
 * @returns {string}
 */
export function contentText(content) {
  if (content == null) return '';
  if (typeof content === 'string') return content;
  if (!Array.isArray(content)) return JSON.stringify(content, null, 2);
  return content
    .map((part) => (typeof part === 'string' ? part : (part?.text ?? `[${part?.type ?? 'part'}]`)))
    .join('\n');
}

/** @param {any[]} tools */
function offered(tools) {
  const names = tools.map((tool) => tool?.function?.name ?? tool?.name ?? '?');
  return fold(
    `${plural(tools.length, 'tool')} on offer: ${oneLine(names.join(', '))}`,
    long(JSON.stringify(tools, null, 2)),
  );
}

/** @param {any} message */
function messageView(message) {
  const role = oneLine(message?.role ?? 'unknown', 20);
  const text = contentText(message?.content);
  const author = message?.name ? `${role} · ${oneLine(message.name, 60)}` : role;
  const thinking = contentText(message?.reasoning_content);
  const calls = Array.isArray(message?.tool_calls) ? message.tool_calls : [];
  const isLongResult = role === 'tool' && text.length > FOLDED;
  return h(
    'article',
    { class: `message role-${/^[a-z]+$/.test(role) ? role : 'other'}` },
    h('h4', {}, author),
    h(
      'div',
      { class: 'said' },
      thinking && fold(`Thinking, ${plural(thinking.length, 'character')}`, long(thinking), 'thinking'),
      text &&
        (isLongResult ? fold(`${oneLine(text, 90)} (${plural(text.length, 'character')})`, long(text)) : long(text)),
      calls.map(callView),
      !text && calls.length === 0 && !thinking && h('p', { class: 'muted' }, 'empty'),
    ),
  );
}

/** @param {any} call */
function callView(call) {
  const name = oneLine(call?.function?.name ?? '?', 80);
  const given = contentText(call?.function?.arguments);
  return fold(`Calls ${name}(${oneLine(given, 80)})`, long(pretty(given)), 'call');
}

/** @param {string} text JSON, or what the model made of it. */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** @param {string} summary @param {Node} body @param {string} [kind] */
function fold(summary, body, kind = '') {
  return h('details', { class: `fold ${kind}` }, h('summary', {}, summary), body);
}

/** @param {string} text */
function long(text) {
  const pre = h('pre', { class: 'text' }, visible(text.slice(0, SHOWN)));
  if (text.length <= SHOWN) return pre;
  const more = h(
    'button',
    {
      type: 'button',
      onclick: () => {
        pre.textContent = visible(text);
        more.remove();
      },
    },
    `Show all ${number(text.length)} characters`,
  );
  return h('div', {}, pre, more);
}
