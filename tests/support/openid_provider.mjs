// The OpenID provider of the npm package `oidc-provider`, which is certified. Like
// `oidc-provider-mock` it signs in whom it is told to, and `PUT /users/<sub>` says what their claims
// are; POST to the same path with `/revoke-tokens` ends all tokens of theirs.
import Provider from "oidc-provider";

const users = new Map();
const revoked = new Set();
const issuer = `http://localhost:${process.argv[2]}`;
const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "ayes",
      client_secret: process.argv[3],
      redirect_uris: ["https://replaced.example/"],
      grant_types: ["authorization_code", "refresh_token"],
    },
  ],
  claims: { openid: ["sub"], profile: ["preferred_username"], groups: ["groups"] },
  scopes: ["openid", "offline_access"],
  cookies: { keys: ["of a test"] },
  issueRefreshToken: () => true,
  rotateRefreshToken: true,
  findAccount: (_, sub) =>
    users.has(sub) && !revoked.has(sub)
      ? { accountId: sub, claims: () => ({ ...users.get(sub), sub }) }
      : undefined,
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  features: { devInteractions: { enabled: false } },
});
// The console of a test has any port.
provider.Client.prototype.redirectUriAllowed = () => true;

async function body(request) {
  let text = "";
  for await (const part of request) text += part;
  return text;
}

provider.use(async (ctx, next) => {
  const [, what, which, more] = ctx.path.split("/").map(decodeURIComponent);
  if (what === "users") {
    if (more) revoked.add(which);
    else users.set(which, JSON.parse(await body(ctx.req)));
    ctx.status = 204;
  } else if (what === "interaction" && ctx.method === "POST") {
    const { params, grantId } = await provider.interactionDetails(ctx.req, ctx.res);
    const form = new URLSearchParams(await body(ctx.req));
    const accountId = form.get("sub");
    if (form.get("action") === "deny") {
      const error = { error: "access_denied" };
      await provider.interactionFinished(ctx.req, ctx.res, error);
    } else {
      revoked.delete(accountId);
      const grant = grantId
        ? await provider.Grant.find(grantId)
        : new provider.Grant({ accountId, clientId: params.client_id });
      grant.addOIDCScope(params.scope);
      const consent = { grantId: await grant.save() };
      await provider.interactionFinished(ctx.req, ctx.res, { login: { accountId }, consent });
    }
    ctx.respond = false;
  } else if (what === "interaction") {
    ctx.body = `<form method="post"><button name="sub" value="ben">Authorize as ben</button></form>`;
  } else await next();
});
provider.listen(Number(process.argv[2]), "localhost", () => console.log("listening"));
