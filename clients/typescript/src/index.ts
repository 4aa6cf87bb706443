export { attached, Client, ENDPOINTS, Problem } from "./client.ts";
export type * from "./client.ts";
export { http } from "./http.ts";
