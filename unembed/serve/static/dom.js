// Helpers. Text goes in as text nodes only: nothing on this page is ever parsed as HTML.

export const $ = (id) => document.getElementById(id);

export const on = (id, event, job) => $(id).addEventListener(event, job);

export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return element;
}
