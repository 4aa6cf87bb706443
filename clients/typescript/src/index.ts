export * from "./client.ts";
export { http } from "./http.ts";
