package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bettercompute/bc/appliance"
	"github.com/bettercompute/bc/appliance/store"
)

// What each caller of acme is to each thing that a call can name.
var (
	ofPools   = []string{"own", "offered", "offered to parent", "foreign", "absent", "archived"}
	ofNodes   = ofPools
	ofBooked  = []string{"own", "in offered", "guest's in own", "foreign", "absent", "in archived"}
	ofTenants = []string{"own", "below", "above", "foreign", "absent", "deleted below"}
	ofOthers  = []string{"own", "foreign", "absent"}
	ofNothing = []string{"own", "below", "above", "foreign", "absent"} // in whose name it is asked
)

// tenancyCase is a method asked of each thing of one kind.
type tenancyCase struct {
	method string
	kind   string // what the call names: a pool, node, … or the tenant alone
	of     []string
	in     func(w *tenancyWorld, rel string) object // without tenantId, which is acme unless it is given
}

func ref(field string, things func(w *tenancyWorld) map[string]string, more object) func(*tenancyWorld, string) object {
	return func(w *tenancyWorld, rel string) object {
		in := maps.Clone(more)
		if in == nil {
			in = object{}
		}
		in[field] = things(w)[rel]
		return in
	}
}

func inTheNameOf(more func(w *tenancyWorld) object) func(*tenancyWorld, string) object {
	return func(w *tenancyWorld, rel string) object {
		in := object{}
		if more != nil {
			in = more(w)
		}
		in["tenantId"] = w.tenants[rel]
		return in
	}
}

func (w *tenancyWorld) name(prefix string) string {
	w.made++
	return fmt.Sprintf("%s-%d", prefix, w.made)
}

var tenancyTable = func() []tenancyCase {
	tenant := func(field string, more object) func(*tenancyWorld, string) object {
		return ref(field, func(w *tenancyWorld) map[string]string { return w.tenants }, more)
	}
	pool := func(more object) func(*tenancyWorld, string) object {
		return ref("poolId", func(w *tenancyWorld) map[string]string { return w.pools }, more)
	}
	node := func(more object) func(*tenancyWorld, string) object {
		return ref("nodeId", func(w *tenancyWorld) map[string]string { return w.nodes }, more)
	}
	booked := func(more object) func(*tenancyWorld, string) object {
		return ref("reservationId", func(w *tenancyWorld) map[string]string { return w.booked }, more)
	}
	site := func(more object) func(*tenancyWorld, string) object {
		return ref("siteId", func(w *tenancyWorld) map[string]string { return w.sites }, more)
	}
	user := func(more object) func(*tenancyWorld, string) object {
		return ref("userId", func(w *tenancyWorld) map[string]string { return w.users }, more)
	}
	key := func(field string, more object) func(*tenancyWorld, string) object {
		return ref(field, func(w *tenancyWorld) map[string]string { return w.keys }, more)
	}
	// fresh makes the thing that a call would use up, where there is one to use.
	fresh := func(in func(*tenancyWorld, string) object, rel string, use func(w *tenancyWorld, in object)) func(*tenancyWorld, string) object {
		return func(w *tenancyWorld, r string) object {
			out := in(w, r)
			if r == rel {
				use(w, out)
			}
			return out
		}
	}
	freshPool := func(w *tenancyWorld, in object) { in["poolId"] = w.pool(w.t, w.site, w.name("p"), nil).ID }
	freshTenant := func(w *tenancyWorld, in object) { in["id"] = w.tenant(w.t, w.name("t"), "acme") }
	day := object{"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}
	return []tenancyCase{
		{"tenants.create", "in the name of", ofNothing, inTheNameOf(func(w *tenancyWorld) object { return object{"id": w.name("t")} })},
		{"tenants.create", "parent tenant", ofTenants, func(w *tenancyWorld, rel string) object {
			return object{"id": w.name("t"), "parentId": w.tenants[rel]}
		}},
		{"tenants.list", "in the name of", ofNothing, inTheNameOf(nil)},
		{"tenants.get", "tenant", ofTenants, tenant("id", nil)},
		{"tenants.suspend", "tenant", ofTenants, fresh(tenant("id", nil), "below", freshTenant)},
		{"tenants.resume", "tenant", ofTenants, tenant("id", nil)},
		{"tenants.delete", "tenant", ofTenants, fresh(tenant("id", nil), "below", freshTenant)},

		{"sites.create", "in the name of", ofNothing, inTheNameOf(func(w *tenancyWorld) object {
			return object{"kind": "custom", "name": w.name("s"), "region": "eu"}
		})},
		{"sites.list", "in the name of", ofNothing, inTheNameOf(nil)},
		{"sites.get", "site", ofOthers, site(nil)},

		{"pools.create", "site", ofOthers, site(object{"class": "metal-host", "gpuModel": "H100"})},
		{"pools.list", "in the name of", ofNothing, inTheNameOf(nil)},
		{"pools.get", "pool", ofPools, pool(nil)},
		{"pools.capacity", "pool", ofPools, pool(nil)},
		{"pools.offer", "pool", ofPools, pool(object{"toTenantId": "guest", "quota": object{"gpu": 8}})},
		{"pools.unoffer", "pool", ofPools, pool(object{"toTenantId": "nobody"})},
		{"pools.offers", "pool", ofPools, pool(nil)},
		{"pools.update", "pool", ofPools, pool(object{"policy": object{}})},
		{"pools.archive", "pool", ofPools, fresh(pool(nil), "own", freshPool)},

		{"nodes.list", "pool", ofPools, pool(nil)},
		{"nodes.get", "node of pool", ofNodes, node(nil)},
		{"nodes.cordon", "node of pool", ofNodes, node(nil)},
		{"nodes.uncordon", "node of pool", ofNodes, node(nil)},
		{"nodes.drain", "node of pool", ofNodes, node(nil)},
		{"nodes.plan", "node of pool", ofNodes, node(nil)},
		{"nodes.reboot", "node of pool", ofNodes, node(object{"dryRun": true})},
		{"nodes.label", "node of pool", ofNodes, node(object{"labels": object{"rack": "r1"}})},
		{"nodes.explain", "node of pool", ofNodes, node(nil)},
		{"nodes.remove", "node of pool", ofNodes, func(w *tenancyWorld, rel string) object { return object{"nodeId": w.spareNode(rel)} }},

		{"quotas.list", "pool", ofPools, pool(nil)},
		{"quotas.set", "pool", ofPools, pool(object{"resource": "gpu", "max": 100})},

		{"reservations.create", "pool", ofPools, pool(object{"resources": object{"gpu": 1}, "dryRun": true})},
		{"reservations.list", "pool", ofPools, pool(nil)},
		{"reservations.get", "reservation", ofBooked, booked(nil)},
		{"reservations.explain", "reservation", ofBooked, booked(nil)},
		{"reservations.extend", "reservation", ofBooked, func(w *tenancyWorld, rel string) object {
			w.made++
			return object{"reservationId": w.booked[rel], "duration": fmt.Sprintf("%dm", 24*60+w.made)} // each later than the one before
		}},
		{"reservations.shorten", "reservation", ofBooked, func(w *tenancyWorld, rel string) object {
			w.made++
			return object{"reservationId": w.booked[rel], "duration": fmt.Sprintf("%dm", 23*60-w.made)}
		}},
		{"reservations.release", "reservation", ofBooked, booked(nil)},

		{"usage.query", "pool", ofPools, pool(day)},
		{"usage.export", "pool", ofPools, pool(day)},
		{"rates.set", "in the name of", ofNothing, inTheNameOf(func(*tenancyWorld) object { return object{"meter": "gpu.h100.hours", "perUnit": 1} })},
		{"rates.list", "in the name of", ofNothing, inTheNameOf(nil)},
		{"budgets.set", "tenant", ofTenants, tenant("forTenantId", object{"period": "total", "amount": 1000000})},
		{"budgets.list", "in the name of", ofNothing, inTheNameOf(nil)},
		{"events.list", "in the name of", ofNothing, inTheNameOf(nil)},

		{"iam.keys.create", "in the name of", ofNothing, inTheNameOf(func(w *tenancyWorld) object { return object{"name": w.name("k"), "role": "viewer"} })},
		{"iam.keys.list", "in the name of", ofNothing, inTheNameOf(nil)},
		{"iam.keys.revoke", "key", ofOthers, key("keyId", nil)},
		{"iam.users.create", "in the name of", ofNothing, inTheNameOf(func(w *tenancyWorld) object { return object{"name": w.name("u"), "role": "viewer"} })},
		{"iam.users.list", "in the name of", ofNothing, inTheNameOf(nil)},
		{"iam.users.get", "user", ofOthers, user(nil)},
		{"iam.users.update", "user", ofOthers, user(object{"role": "viewer"})},
		{"iam.users.setPassword", "user", ofOthers, user(object{"password": "correct horse battery"})},
		{"iam.users.loginLink", "user", ofOthers, user(nil)},
		{"iam.users.delete", "user", ofOthers, fresh(user(nil), "own", func(w *tenancyWorld, in object) {
			in["userId"] = do[appliance.User](w.t, w.op, "iam.users.create", object{"tenantId": "acme", "name": w.name("u"), "role": "viewer"}).ID
		})},
		{"iam.policies.put", "in the name of", ofNothing, inTheNameOf(func(*tenancyWorld) object {
			return object{"name": "harmless", "cedar": `forbid (principal, action, resource is Pool) when { resource.gpuModel == "none" };`}
		})},
		{"iam.policies.list", "in the name of", ofNothing, inTheNameOf(nil)},
		{"iam.policies.delete", "policy", ofOthers, ref("name", func(*tenancyWorld) map[string]string {
			return map[string]string{"own": "harmless", "foreign": "theirs", "absent": "nobodys"}
		}, nil)},
		{"iam.check", "principal", ofOthers, key("principal", object{"action": "compute:pools:create"})},
		{"iam.check", "pool", ofPools, func(w *tenancyWorld, rel string) object {
			return object{"principal": w.keys["own"], "action": "compute:pools:read", "poolId": w.pools[rel]}
		}},
		{"system.status", "in the name of", append(slices.Clone(ofNothing), "root"), inTheNameOf(nil)},
	}
}()

// tenancyWorld has one thing of each kind for each relation.
type tenancyWorld struct {
	*box
	t    *testing.T
	op   *person
	site appliance.Site
	made int

	tenants, sites, pools, nodes, booked, users, keys map[string]string
	spare                                             map[string][]string // nodes to remove
}

func (w *tenancyWorld) spareNode(rel string) string {
	if left := w.spare[rel]; len(left) > 0 {
		w.spare[rel] = left[1:]
		return left[0]
	}
	return w.nodes[rel]
}

func newTenancyWorld(t *testing.T) *tenancyWorld {
	b := startBox(t, "--listen", "127.0.0.1:0")
	w := &tenancyWorld{box: b, t: t, op: b.operator(t), spare: map[string][]string{}}
	b.tenant(t, "parent")
	b.tenant(t, "acme", "parent")
	for _, child := range []string{"child", "gone"} {
		b.tenant(t, child, "acme")
	}
	do[appliance.Tenant](t, w.op, "tenants.delete", object{"tenantId": "acme", "id": "gone"})
	b.tenant(t, "foreign")
	b.tenant(t, "guest")
	w.tenants = map[string]string{"own": "acme", "below": "child", "above": "parent", "foreign": "foreign", "absent": "no-such", "deleted below": "gone", "root": "root"}

	w.site = b.site(t, "acme", "lab", "custom")
	theirs := b.site(t, "foreign", "lab", "custom")
	w.sites = map[string]string{"own": w.site.ID, "foreign": theirs.ID, "absent": "site_01k5c000000000000000000000"}

	all := map[string]appliance.Pool{
		"own": b.pool(t, w.site, "own", nil), "archived": b.pool(t, w.site, "archived", nil), "offered": b.pool(t, theirs, "offered", nil),
		"offered to parent": b.pool(t, theirs, "above", nil), "foreign": b.pool(t, theirs, "foreign", nil),
	}
	b.offer(t, all["offered"], "acme", object{"gpu": 8})
	do[appliance.Offer](t, w.op, "pools.offer", object{"tenantId": "foreign", "poolId": all["offered to parent"].ID, "toTenantId": "parent", "quota": object{"gpu": 8}, "includeDescendants": true})
	b.offer(t, all["own"], "guest", object{"gpu": 8})
	w.pools = map[string]string{"absent": "pool_01k5c000000000000000000000"}
	w.nodes = map[string]string{"absent": "node_01k5c000000000000000000000"}
	w.booked = map[string]string{"absent": "res_01k5c000000000000000000000"}
	var stops []func()
	const each = 12 // one for each call that removes one, and a few that are booked
	for rel, p := range all {
		w.pools[rel] = p.ID
		_, stop := b.runFleet(t, p, "cpu-only", each)
		stops = append(stops, stop)
	}
	for rel, p := range all {
		for i, n := range b.ready(t, p, each) {
			if i == 0 {
				w.nodes[rel] = n.ID
			} else {
				w.spare[rel] = append(w.spare[rel], n.ID)
			}
		}
	}
	for _, stop := range stops {
		stop()
	}
	for rel, r := range map[string]struct{ tenant, pool string }{
		"own": {"acme", "own"}, "in offered": {"acme", "offered"}, "guest's in own": {"guest", "own"}, "foreign": {"foreign", "foreign"}, "in archived": {"acme", "archived"},
	} {
		// Scalars need rows; nodes without GPUs have nothing else to book.
		do[appliance.Quota](t, w.op, "quotas.set", object{"tenantId": all[r.pool].OwnerTenantID, "poolId": w.pools[r.pool], "forTenantId": r.tenant, "resource": "vcpu", "max": 8})
		made := do[appliance.Reservation](t, w.op, "reservations.create", object{"tenantId": r.tenant, "poolId": w.pools[r.pool], "resources": object{"vcpu": 1}, "duration": "6h"})
		if made.State != appliance.Placed {
			t.Fatalf("%s: %s", rel, made.Message)
		}
		w.booked[rel] = made.ID
		w.spare[r.pool] = slices.DeleteFunc(w.spare[r.pool], func(id string) bool { return id == made.Placements[0].NodeID })
	}
	do[appliance.Pool](t, w.op, "pools.archive", object{"tenantId": "acme", "poolId": w.pools["archived"]})

	w.users, w.keys = map[string]string{"absent": "user_01k5c000000000000000000000"}, map[string]string{"absent": "key_01k5c000000000000000000000"}
	for rel, tenant := range map[string]string{"own": "acme", "foreign": "foreign"} {
		w.users[rel] = do[appliance.User](t, w.op, "iam.users.create", object{"tenantId": tenant, "name": "person", "role": "viewer"}).ID
		w.keys[rel] = do[appliance.Key](t, w.op, "iam.keys.create", object{"tenantId": tenant, "name": "program", "role": "viewer"}).ID
	}
	do[appliance.AccessPolicy](t, w.op, "iam.policies.put", object{"tenantId": "foreign", "name": "theirs", "cedar": `permit (principal, action, resource is Pool) when { resource.owned };`})
	return w
}

// nobody calls over TLS without any credential.
func (b *box) nobody(t *testing.T) *person {
	t.Helper()
	ca := filepath.Join(b.dir, "pki", "ca.pem")
	return b.overTLS(t, "nobody", "", ca)
}

// Everything, by everyone, of everything: what each role of a tenant is
// answered by each method, for what is its own and what is not. The table is
// testdata/guide_tenancy.txt, written with -update.
func TestGuideTenancy(t *testing.T) {
	w := newTenancyWorld(t)
	covered := map[string]bool{}
	for _, c := range tenancyTable {
		covered[c.method] = true
	}
	all := methods(t, w.op)
	for method, action := range all {
		if !covered[method] && action != anonymous {
			t.Errorf("%s is in no row of the table", method)
		}
	}

	// The stranger first, while there is something that it could spoil.
	t.Run("a stranger cannot tell a foreign thing from none", func(t *testing.T) { w.stranger(t) })

	people := []*person{
		w.key(t, "acme", appliance.RoleOwner), w.key(t, "acme", appliance.RoleOperator), w.key(t, "acme", appliance.RoleMember), w.key(t, "acme", appliance.RoleViewer),
		w.nobody(t), w.op,
	}
	var table strings.Builder
	table.WriteString("What each method answers to each role of tenant acme, by what the call names.\nWritten by the tests of cmd/bc with -update.\n\n")
	row := func(method, thing string, cells []string) {
		line := fmt.Sprintf("%-22s%-38s", method, thing)
		for _, c := range cells {
			line += fmt.Sprintf("%-17s", c)
		}
		table.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	row("method", "asked of", []string{"owner", "operator", "member", "viewer", "no credential", "local operator"})
	for _, c := range tenancyTable {
		for _, rel := range c.of {
			var cells []string
			for _, p := range people {
				in := c.in(w, rel)
				if in["tenantId"] == nil {
					in["tenantId"] = "acme"
				}
				if p == w.op && rel == "own" && c.kind == "tenant" && c.method != "budgets.set" && c.method != "tenants.get" {
					self := w.tenant(t, w.name("t"), "acme") // in its own name, as the local operator can
					in = object{"tenantId": self, "id": self}
				}
				a := p.try(t, c.method, in)
				if a.status >= 500 {
					t.Errorf("%s %s: %d %s", c.method, rel, a.status, a.body)
				}
				cells = append(cells, string(a.code()))
			}
			row(c.method, c.kind+": "+rel, cells)
		}
	}
	golden := filepath.Join("testdata", "guide_tenancy.txt")
	if updating() {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, []byte(table.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	is, should := strings.Split(table.String(), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(is), len(should)) {
		a, b := lineAt(is, i), lineAt(should, i)
		if a != b {
			t.Errorf("line %d is\n%s\nnot\n%s", i+1, a, b)
		}
	}
	w.neverShown(t, is)
	if _, ok := all["iam.login"]; ok {
		t.Run("who signs in cannot tell a person, or a tenant, from none", func(t *testing.T) { w.signIn(t) })
	}
}

// signIn tries few passwords: every wrong one counts against the address.
func (w *tenancyWorld) signIn(t *testing.T) {
	do[appliance.User](t, w.op, "iam.users.create", object{"tenantId": "acme", "name": "ada", "role": "viewer", "password": "correct horse battery"})
	nobody := w.nobody(t)
	ask := func(tenant, name, password string) answer {
		body, err := json.Marshal(object{"tenantId": tenant, "name": name, "password": password})
		if err != nil {
			t.Fatal(err)
		}
		return nobody.post(t, "iam.login", body, "X-Request-Id", "same")
	}
	if a := ask("acme", "ada", "correct horse battery"); a.status != 200 {
		t.Fatalf("the right password: %d %s", a.status, a.body)
	}
	wrong := ask("acme", "ada", "wrong horse battery")
	if wrong.code() != appliance.Unauthenticated {
		t.Errorf("a wrong password: %d %s", wrong.status, wrong.body)
	}
	for _, other := range []answer{ask("acme", "nobody", "wrong horse battery"), ask("no-such", "ada", "wrong horse battery"), ask("gone", "ada", "wrong horse battery")} {
		if other.status != wrong.status || !bytes.Equal(other.body, wrong.body) || !sameHeaders(other.header, wrong.header) {
			t.Errorf("a person that is not there: %d %s, one that is: %d %s", other.status, other.body, wrong.status, wrong.body)
		}
	}
}

func lineAt(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

// neverShown holds the table itself to the rule, whatever is in the file: what
// a role of acme may not see is NOT_FOUND, and never denied, conflicting or in
// a state.
func (w *tenancyWorld) neverShown(t *testing.T, table []string) {
	t.Helper()
	for _, line := range table {
		hidden := false
		for _, thing := range []string{": foreign", ": absent", ": above", ": offered to parent", ": guest's in own"} {
			hidden = hidden || strings.Contains(line, thing)
		}
		cells := strings.Fields(line)
		if !hidden || len(cells) < 6 {
			continue
		}
		for _, cell := range cells[len(cells)-6 : len(cells)-2] {
			legal := cell == "NOT_FOUND"
			switch {
			case strings.HasPrefix(line, "reservations.list"), strings.HasPrefix(line, "iam.policies.delete"):
				legal = legal || cell == "OK" // an empty list; nothing removed
			}
			if roleDenied := cell == "ACCESS_DENIED" && !strings.Contains(line, "in the name of"); !legal && !roleDenied {
				t.Errorf("what is hidden is answered with %s: %s", cell, line)
			}
		}
	}
}

// stranger asks, as an owner of acme, of everything that acme does not see,
// beside the same of what does not exist: the answers are the same bytes, and
// nothing is left in the store by either.
func (w *tenancyWorld) stranger(t *testing.T) {
	owner := w.key(t, "acme", appliance.RoleOwner)
	before := w.rows(t)
	for _, c := range tenancyTable {
		if !slices.Contains(c.of, "absent") {
			continue
		}
		for _, rel := range []string{"foreign", "above", "offered to parent", "guest's in own"} {
			if !slices.Contains(c.of, rel) {
				continue
			}
			for _, p := range []*person{owner, w.op} {
				if p == w.op && c.kind == "in the name of" {
					continue // it may act in anyone's
				}
				ask := func(rel string) answer {
					in := c.in(w, rel)
					if in["tenantId"] == nil {
						in["tenantId"] = "acme"
					}
					body, err := json.Marshal(in)
					if err != nil {
						t.Fatal(err)
					}
					return p.post(t, c.method, body, "X-Request-Id", "same")
				}
				there, none := ask(rel), ask("absent")
				if there.status != none.status || !bytes.Equal(there.body, none.body) || !sameHeaders(there.header, none.header) {
					t.Errorf("%s asks %s of %s: %s\nis told %d %s %v\nof one that does not exist\n%d %s %v", p.name, c.method, c.kind, rel, there.status, there.body, there.header, none.status, none.body, none.header)
				}
			}
		}
	}
	if after := w.rows(t); after != before {
		t.Errorf("the calls left something:\n%s\nbefore:\n%s", after, before)
	}
}

func sameHeaders(a, b http.Header) bool {
	a, b = a.Clone(), b.Clone()
	a.Del("Date")
	b.Del("Date")
	return maps.EqualFunc(a, b, slices.Equal)
}

// rows counts everything that is stored, between two runs of the server.
func (w *tenancyWorld) rows(t *testing.T) string {
	t.Helper()
	w.stop(t)
	s, err := store.Open(t.Context(), store.Options{Path: filepath.Join(w.dir, "state.db")})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	err = s.Read(t.Context(), func(tx *store.Tx) error {
		names, err := column(tx, `SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name`)
		if err != nil {
			return err
		}
		for _, table := range names {
			columns, err := column(tx, `SELECT 'length(quote("' || name || '"))' FROM pragma_table_info('`+table+`') WHERE name <> 'last_used_at'`)
			if err != nil {
				return err
			}
			sums, err := column(tx, `SELECT count(*) || ' rows, ' || coalesce(sum(`+strings.Join(columns, " + ")+`), 0) || ' bytes' FROM "`+table+`"`)
			if err != nil {
				return err
			}
			fmt.Fprintln(&out, table, sums[0])
		}
		return nil
	})
	if err == nil {
		err = s.Shutdown(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	w.start(t)
	return out.String()
}

func column(tx *store.Tx, query string) (out []string, err error) {
	rows, err := tx.Query(query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, rows.Err()
}
