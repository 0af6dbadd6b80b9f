// Requests to the server: POST with JSON. The browser manages the session cookie.

/** An error of the server. */
export class ApiError extends Error {
  constructor(message, { status = 0, code, codeName } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.codeName = codeName;
  }
}

const listeners = new Set();

/** Calls `listener` when the server asks for a login. */
export function onLoginNeeded(listener) {
  listeners.add(listener);
}

async function post(path, text, signal) {
  let response;
  try {
    response = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: text,
      credentials: "same-origin",
      cache: "no-store",
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it running?");
  }
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  if (response.status === 401 && path !== "/api/login") listeners.forEach((listener) => listener());
  throw new ApiError(answer.error ?? `The server answers ${response.status}.`, { status: response.status });
}

/** Calls a path of the API. */
export function call(path, body = {}) {
  return post(path, JSON.stringify(body));
}

/**
 * Sends a command to the database `db`. `command` is an object, or a text in extended JSON: a text goes as it is, so
 * that no number in it is rounded on the way. Gives {reply, more, micros}; the reply is canonical extended JSON.
 */
export async function command(db, command, signal) {
  const text = typeof command === "string" ? command : JSON.stringify(command);
  const answer = await post("/api/command", `{"db":${JSON.stringify(db)},"command":${text}}`, signal);
  const { reply } = answer;
  if (Number(reply.ok?.$numberDouble) === 1) return answer;
  const code = Number(reply.code?.$numberInt);
  throw new ApiError(reply.errmsg ?? "The command failed.", { code, codeName: reply.codeName });
}

/** Returns the first batch of a command with a cursor. */
export async function batch(db, text, signal) {
  const answer = await command(db, text, signal);
  return { ...answer, documents: answer.reply.cursor?.firstBatch ?? [] };
}
