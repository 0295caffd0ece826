// SPDX-License-Identifier: Apache-2.0
// api.js - the daemon's public API, by fetch. A key is kept in memory (in sessionStorage if its user asks for that) and sent as
// Authorization; it is in no URL, no cookie and no copied line.
import {EventReader, curlLine, queryOf} from './pure.js';

// An answer that is a problem document, or no answer at all (status 0).
export class Problem extends Error {
  constructor(status, document) {
    super(document?.detail ?? document?.title ?? `status ${status}`);
    this.status = status;
    this.code = document?.code ?? '';
    this.detail = this.message;
  }
}

const KEPT = 'attnd-key';
const RECONNECT_MS = [250, 500, 1000, 2000, 4000];

export class Api {
  // askKey(problem): resolves to {key, keep}. onKey(): there is another key. onProblem(problem): every one, before it is thrown.
  constructor({askKey, onKey, onProblem, onDone}) {
    this.base = new URL('.', document.baseURI).href;
    this.askKey = askKey;
    this.onKey = onKey;
    this.onProblem = onProblem;
    this.onDone = onDone; // with the path and the answer of what is no GET
    this.key = sessionStorage.getItem(KEPT);
    this.asking = null;
    // Behind a proxy every request goes to one node: the one that the address names (#n2), or whichever answers first.
    this.node = /^#(n\d{1,4})$/.exec(location.hash)?.[1] ?? null;
  }

  get keyed() {
    return this.key !== null;
  }

  forgetKey() {
    this.key = null;
    sessionStorage.removeItem(KEPT);
  }

  headers(more = {}) {
    return {...more, ...(this.keyed ? {Authorization: `Bearer ${this.key}`} : {}), ...(this.node ? {'X-Attnd-Node': this.node} : {})};
  }

  curl(request) {
    const proxied = location.protocol === 'https:' && this.node; // attnd itself speaks no TLS
    return curlLine({...request, base: this.base, keyed: this.keyed, headers: {...(proxied ? {'X-Attnd-Node': this.node} : {}), ...request.headers}});
  }

  // One dialog for all requests that are refused at the same time; those refused with an older key just try again.
  async needKey(problem, tried) {
    if (tried !== this.key) return;
    this.asking ??= this.askKey(problem).then(({key, keep}) => {
      this.key = key;
      if (keep) sessionStorage.setItem(KEPT, key);
      else sessionStorage.removeItem(KEPT);
      Promise.resolve(this.onKey?.()).catch(() => null); // not awaited: it asks with this key
    }).finally(() => { this.asking = null; });
    await this.asking;
  }

  async fetch(path, {method = 'GET', query, body, bytes, headers = {}, signal} = {}) {
    for (;;) {
      const tried = this.key;
      const init = {method, signal, cache: 'no-store', credentials: 'omit', redirect: 'error', headers: this.headers(headers)};
      if (body !== undefined) {
        init.body = JSON.stringify(body);
        init.headers['Content-Type'] = 'application/json';
      } else if (bytes) {
        init.body = bytes;
        init.headers['Content-Type'] = 'application/x-safetensors';
      }
      let answer;
      try {
        answer = await fetch(this.base.replace(/\/$/, '') + path + queryOf(query), init);
      } catch (error) {
        if (error.name === 'AbortError') throw error;
        throw this.report(new Problem(0, {detail: 'the daemon does not answer'}));
      }
      this.node ??= answer.headers.get('X-Attnd-Node');
      if (answer.ok || answer.status === 304) return answer;
      const problem = new Problem(answer.status, await answer.json().catch(() => null));
      if (answer.status !== 401) throw this.report(problem);
      await this.needKey(problem, tried);
    }
  }

  report(problem) {
    this.onProblem?.(problem);
    return problem;
  }

  // json(path, ...): the answer's JSON; null of an empty one.
  async json(path, options) {
    const answer = await this.fetch(path, options), told = answer.status === 204 || answer.status === 304 ? null : await answer.json();
    if (options?.method) this.onDone?.(path, told);
    return told;
  }

  // events({types, on, opened, signal}): read /v1/events until `signal`, again and again, from where it was left. on(event) gets the parsed
  // data, with its name; opened(again) is called when a stream begins. Throws a Problem that another try would not change.
  async events({types, on, opened, signal}) {
    let last, tries = 0;
    while (!signal.aborted) {
      try {
        const headers = {Accept: 'text/event-stream', ...(last === undefined ? {} : {'Last-Event-ID': last})};
        const answer = await this.fetch('/v1/events', {query: {types}, headers, signal});
        opened(last !== undefined);
        tries = 0;
        const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader(), events = new EventReader();
        for (let part = await reader.read(); !part.done; part = await reader.read()) {
          for (const e of events.push(part.value)) {
            last = e.id ?? last;
            on({...JSON.parse(e.data), event: e.event});
          }
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof Problem && error.status >= 400 && error.status < 500 && error.status !== 429) throw error;
      }
      await new Promise((wake) => setTimeout(wake, RECONNECT_MS[Math.min(tries++, RECONNECT_MS.length - 1)]));
    }
  }
}
