/** Conversations in OpenAI's format, by author, with thinking and tool calls folded. */

import { h } from './dom.mjs';
import { number, plural } from './format.mjs';
import { oneLine, visible } from './text.mjs';

/** Characters of a text that are shown before the reader asks for more. */
const SHOWN = 12_000;
/** Tool results longer than this are folded. */
const FOLDED = 600;

/**
 * @param {{ model: string, tools: any[], messages: any[] }} conversation
 * @returns {HTMLElement}
 */
export function conversationView({ tools, messages }) {
  return h('div', { class: 'conversation' }, tools.length > 0 && offered(tools), messages.map(messageView));
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
