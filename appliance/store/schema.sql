-- Made from migrations/ by go test ./appliance/store -update; not read by the program.

CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tenants (
  id         TEXT PRIMARY KEY,
  parent_id  TEXT REFERENCES tenants(id), -- NULL for root alone
  name       TEXT NOT NULL,
  state      TEXT NOT NULL CHECK (state IN ('active', 'suspended', 'deleted')),
  created_at INTEGER NOT NULL,
  CHECK ((parent_id IS NULL) = (id = 'root'))
) STRICT, WITHOUT ROWID;

CREATE INDEX tenants_by_parent ON tenants(parent_id);

CREATE TABLE sites (
  id              TEXT PRIMARY KEY,
  owner_tenant_id TEXT NOT NULL REFERENCES tenants(id),
  kind            TEXT NOT NULL CHECK (kind IN ('custom', 'shared', 'dedicated')),
  name            TEXT NOT NULL,
  region          TEXT NOT NULL,
  created_at      INTEGER NOT NULL,
  UNIQUE (owner_tenant_id, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE pools (
  id                  TEXT PRIMARY KEY,
  owner_tenant_id     TEXT NOT NULL REFERENCES tenants(id),
  site_id             TEXT NOT NULL REFERENCES sites(id),
  class               TEXT NOT NULL,
  gpu_model           TEXT NOT NULL,
  sharing             TEXT NOT NULL,
  agent               TEXT NOT NULL,
  provider_account_id TEXT NOT NULL DEFAULT '',
  name                TEXT NOT NULL DEFAULT '',
  policy              TEXT NOT NULL, -- byte for byte as given
  version             INTEGER NOT NULL CHECK (version >= 1),
  created_at          INTEGER NOT NULL,
  archived_at         INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX pools_by_owner ON pools(owner_tenant_id, id);

CREATE UNIQUE INDEX pools_by_name ON pools(owner_tenant_id, name) WHERE name <> '' AND archived_at IS NULL;

CREATE TABLE pool_offers (
  pool_id             TEXT NOT NULL REFERENCES pools(id),
  tenant_id           TEXT NOT NULL REFERENCES tenants(id),
  include_descendants INTEGER NOT NULL,
  priority            INTEGER NOT NULL CHECK (priority BETWEEN -1000 AND 1000),
  on_budget_exceeded  TEXT NOT NULL CHECK (on_budget_exceeded IN ('none', 'stop-new', 'drain')),
  created_at          INTEGER NOT NULL,
  PRIMARY KEY (pool_id, tenant_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE pool_authz (
  tenant_id TEXT NOT NULL REFERENCES tenants(id),
  pool_id   TEXT NOT NULL REFERENCES pools(id),
  gpu_model TEXT NOT NULL,
  class     TEXT NOT NULL,
  sharing   TEXT NOT NULL,
  region    TEXT NOT NULL,
  owned     INTEGER NOT NULL,
  PRIMARY KEY (tenant_id, pool_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX pool_authz_by_pool ON pool_authz(pool_id);

CREATE TABLE quotas (
  tenant_id TEXT NOT NULL REFERENCES tenants(id),
  pool_id   TEXT NOT NULL REFERENCES pools(id),
  resource  TEXT NOT NULL,
  max       INTEGER NOT NULL CHECK (max BETWEEN 0 AND 2147483647),
  used      INTEGER NOT NULL CHECK (used >= 0),
  PRIMARY KEY (tenant_id, pool_id, resource)
) STRICT, WITHOUT ROWID;

CREATE INDEX quotas_by_pool ON quotas(pool_id);

CREATE TABLE nodes (
  id              TEXT PRIMARY KEY,
  pool_id         TEXT NOT NULL REFERENCES pools(id),
  machine_id      TEXT NOT NULL,
  hostname        TEXT NOT NULL,
  role            TEXT NOT NULL CHECK (role IN ('host', 'dedicated')),
  control         TEXT NOT NULL CHECK (control IN ('platform', 'tenant-owned', 'tenant-controlled')),
  state           TEXT NOT NULL,
  hold            TEXT NOT NULL DEFAULT '' CHECK (hold IN ('', 'cordoned', 'draining')), -- what an operator set
  simulated       INTEGER NOT NULL,
  local           INTEGER NOT NULL, -- the machine that the control plane runs on
  credential_hash TEXT NOT NULL,
  spec_version    INTEGER NOT NULL, -- the pool's version that spec_json and the counters were made from
  inventory_hash  TEXT NOT NULL,
  joined_at       INTEGER NOT NULL,
  removed_at      INTEGER,
  -- last, so that a start reads what precedes them alone
  labels_json     TEXT NOT NULL,
  conditions_json TEXT NOT NULL,
  units_json      TEXT NOT NULL,
  checks_json     TEXT NOT NULL,
  spec_json       TEXT NOT NULL  -- the NodeSpec without its bindings and generation
, rollout_json TEXT NOT NULL DEFAULT '', walled INTEGER NOT NULL DEFAULT 0) STRICT, WITHOUT ROWID;

CREATE INDEX nodes_by_pool ON nodes(pool_id, id);

CREATE UNIQUE INDEX nodes_by_machine ON nodes(machine_id) WHERE removed_at IS NULL;

CREATE UNIQUE INDEX nodes_by_credential ON nodes(credential_hash);

CREATE TABLE node_inventories (
  node_id TEXT PRIMARY KEY REFERENCES nodes(id),
  body    TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE node_shapes (
  hash TEXT PRIMARY KEY,
  body TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE node_facts (
  node_id    TEXT PRIMARY KEY REFERENCES nodes(id),
  shape      TEXT NOT NULL REFERENCES node_shapes(hash),
  attributes TEXT NOT NULL,
  own        TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE node_ledgers (
  node_id    TEXT PRIMARY KEY REFERENCES nodes(id),
  generation INTEGER NOT NULL,
  resources  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE atoms (
  node_id        TEXT NOT NULL,
  atom           TEXT NOT NULL,
  reservation_id TEXT NOT NULL, releasing INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (node_id, atom)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
  seq       INTEGER PRIMARY KEY,
  type      TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  reader_id TEXT NOT NULL DEFAULT '',
  pool_id   TEXT NOT NULL DEFAULT '',
  to_pool   INTEGER NOT NULL DEFAULT 0, -- whoever sees the pool may read it
  subject   TEXT NOT NULL,
  at        INTEGER NOT NULL,
  data      TEXT NOT NULL,
  actor     TEXT NOT NULL,
  policies  TEXT NOT NULL DEFAULT ''
) STRICT;

CREATE TABLE denials (
  seq       INTEGER PRIMARY KEY,
  at        INTEGER NOT NULL,
  actor     TEXT NOT NULL,
  address   TEXT NOT NULL,
  action    TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  subject   TEXT NOT NULL,
  policies  TEXT NOT NULL
) STRICT;

CREATE TABLE keys (
  id           TEXT PRIMARY KEY,
  tenant_id    TEXT NOT NULL REFERENCES tenants(id),
  name         TEXT NOT NULL,
  role         TEXT NOT NULL,
  secret_hash  TEXT NOT NULL UNIQUE,
  created_at   INTEGER NOT NULL,
  expires_at   INTEGER,
  last_used_at INTEGER,
  revoked_at   INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX keys_by_tenant ON keys(tenant_id, id);

CREATE TABLE users (
  id            TEXT PRIMARY KEY,
  tenant_id     TEXT NOT NULL REFERENCES tenants(id),
  name          TEXT NOT NULL, -- what the person signs in with
  role          TEXT NOT NULL,
  password_hash TEXT NOT NULL, -- argon2id; empty: signs in by login links
  created_at    INTEGER NOT NULL,
  last_login_at INTEGER,
  disabled_at   INTEGER,
  UNIQUE (tenant_id, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX users_by_name ON users(name);

CREATE TABLE login_links (
  token_hash TEXT PRIMARY KEY,
  subject    TEXT NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE access_policies (
  tenant_id  TEXT NOT NULL REFERENCES tenants(id),
  name       TEXT NOT NULL,
  cedar      TEXT NOT NULL, -- as given
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (tenant_id, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE usage_intervals (
  reservation_id TEXT NOT NULL,
  from_at        INTEGER NOT NULL,
  to_at          INTEGER NOT NULL,
  tenant_id      TEXT NOT NULL,
  pool_id        TEXT NOT NULL,
  meters_json    TEXT NOT NULL, -- amounts by meter
  PRIMARY KEY (reservation_id, from_at)
) STRICT, WITHOUT ROWID;

CREATE INDEX usage_by_tenant ON usage_intervals(tenant_id, to_at);

CREATE INDEX usage_by_pool ON usage_intervals(pool_id, to_at);

CREATE TABLE rates (
  tenant_id TEXT NOT NULL REFERENCES tenants(id), -- the owner of the pools
  meter     TEXT NOT NULL,
  per_unit  REAL NOT NULL CHECK (per_unit >= 0),
  PRIMARY KEY (tenant_id, meter)
) STRICT, WITHOUT ROWID;

CREATE TABLE budgets (
  tenant_id TEXT NOT NULL REFERENCES tenants(id),
  period    TEXT NOT NULL CHECK (period IN ('month', 'total')),
  amount    REAL NOT NULL CHECK (amount >= 0),
  set_by    TEXT NOT NULL,
  exceeded  INTEGER NOT NULL, -- whether that has been told
  PRIMARY KEY (tenant_id, period)
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions (
  token_hash TEXT PRIMARY KEY,
  user_id    TEXT NOT NULL REFERENCES users(id) ON DELETE CASCADE,
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX sessions_by_user ON sessions(user_id);

CREATE INDEX nodes_rolling ON nodes(id) WHERE rollout_json <> '';

CREATE INDEX nodes_walled ON nodes(id) WHERE walled = 1;

CREATE INDEX atoms_releasing ON atoms(node_id) WHERE releasing > 0;

CREATE TABLE reboots (
  node_id TEXT PRIMARY KEY REFERENCES nodes(id),
  body    TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE "reservations" (
  id         TEXT PRIMARY KEY,
  tenant_id  TEXT NOT NULL,
  pool_id    TEXT NOT NULL,
  state      TEXT NOT NULL CHECK (state = 'pending' OR state = 'placed' OR state = 'active' OR state = 'ended' OR state = 'failed'),
  queue      INTEGER NOT NULL, -- order of creation: the sequence number of its first event
  expires_at INTEGER,
  hold       TEXT, -- what a start has to know of a booked one: see hold.go; NULL for others
  body       TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX reservations_by_tenant ON reservations(tenant_id, id);

CREATE INDEX reservations_booked ON reservations(pool_id, id, tenant_id, expires_at, hold) WHERE hold IS NOT NULL;

CREATE INDEX reservations_pending ON reservations(queue) WHERE state = 'pending';
