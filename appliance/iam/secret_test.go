package iam

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/bettercompute/bc/appliance"
)

func TestASecretIsWellFormedAndItsHashIsKept(t *testing.T) {
	form := regexp.MustCompile(`^bc[cjklns]_[0-9a-z]{64}$`)
	seen := map[string]bool{}
	for _, prefix := range secretPrefixes {
		for range 20 {
			secret, hash, err := NewSecret(prefix, rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			if !form.MatchString(secret) || seen[secret] {
				t.Errorf("%q is malformed or was made before", secret)
			}
			seen[secret] = true
			if got, err := ParseSecret(secret); err != nil || got != prefix {
				t.Errorf("ParseSecret(%q) = %q, %v", secret, got, err)
			}
			if hash != HashSecret(secret) || strings.Contains(hash, secret[4:20]) {
				t.Errorf("the hash of %q is %q", secret, hash)
			}
			if !IsSecret(secret, hash) || IsSecret(secret, HashSecret(secret+"x")) || IsSecret(secret, "") {
				t.Errorf("IsSecret does not tell %q from others", secret)
			}
		}
	}
}

func TestAMistypedSecretIsToldWithoutRepeatingIt(t *testing.T) {
	secret, _, err := NewSecret(APIKeySecret, bytes.NewReader(bytes.Repeat([]byte{7}, secretRandom)))
	if err != nil {
		t.Fatal(err)
	}
	refused := func(s string) {
		t.Helper()
		_, err := ParseSecret(s)
		if appliance.CodeOf(err) != appliance.Unauthenticated {
			t.Errorf("ParseSecret(%q) = %v, want UNAUTHENTICATED", s, err)
			return
		}
		if len(s) > 20 && strings.Contains(err.Error(), s[8:20]) {
			t.Errorf("the refusal repeats the secret: %v", err)
		}
	}
	for i := len(APIKeySecret); i < len(secret); i++ {
		for _, c := range "0123456789abcdefghjkmnpqrstvwxyz" {
			if byte(c) != secret[i] {
				refused(secret[:i] + string(c) + secret[i+1:])
			}
		}
		if i > len(APIKeySecret) && secret[i] != secret[i-1] {
			refused(secret[:i-1] + secret[i:i+1] + secret[i-1:i] + secret[i+1:]) // swapped
		}
		refused(secret[:i]) // cut
	}
	refused(JoinSecret + secret[4:])
	refused(secret + "0")
	refused(secret + "\n")
	refused(" " + secret)
	refused(strings.ToUpper(secret))
	refused("bck_" + strings.ToUpper(secret[4:]))
	refused("")
	refused("hunter2")
}

func TestASecretIsNotMadeWithoutRandomness(t *testing.T) {
	broken := errors.New("entropy gone")
	if s, h, err := NewSecret(APIKeySecret, iotest.ErrReader(broken)); !errors.Is(err, broken) || s != "" || h != "" {
		t.Errorf("NewSecret = %q, %q, %v", s, h, err)
	}
	if s, h, err := NewSecret(APIKeySecret, strings.NewReader("short")); err == nil || s != "" || h != "" {
		t.Errorf("NewSecret of 5 bytes = %q, %q, %v", s, h, err)
	}
}

func TestAPasswordMatchesItsOwnHashAlone(t *testing.T) {
	ctx := context.Background()
	one, err := HashPassword(ctx, "correct horse battery", rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	two, err := HashPassword(ctx, "correct horse battery", rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if one == two || !strings.HasPrefix(one, "$argon2id$v=19$m=19456,t=2,p=1$") {
		t.Errorf("kept as %q and %q, want two salted argon2id texts", one, two)
	}
	for password, want := range map[string]bool{"correct horse battery": true, "correct horse batterz": false, "": false} {
		if got, err := IsPassword(ctx, password, one); got != want || err != nil {
			t.Errorf("IsPassword(%q) = %v, %v, want %v", password, got, err, want)
		}
	}
	if got, err := IsPassword(ctx, "correct horse battery", ""); got || err != nil {
		t.Errorf("no stored password: %v, %v, want a plain no", got, err)
	}
	// From the reference implementation's test.c, with its own cost.
	reference := "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4"
	if got, err := IsPassword(ctx, "password", reference); !got || err != nil {
		t.Errorf("the reference implementation's hash: %v, %v", got, err)
	}
}

func TestAStoredPasswordThatCannotBeReadIsAnErrorAndNoMatch(t *testing.T) {
	for _, stored := range []string{
		"x", "$argon2i$v=19$m=19456,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
		"$argon2id$v=19$m=4294967295,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
		"$argon2id$v=19$m=19456,t=0,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
		"$argon2id$v=19$m=19456,t=2,p=0$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
		"$argon2id$v=19$m=19456,t=2,p=1$c29tZXNhbHQ$", "$argon2id$v=19$m=19456,t=2,p=1$!$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc",
	} {
		got, err := IsPassword(context.Background(), "password", stored)
		if got || err == nil || strings.Contains(err.Error(), "CTFh") {
			t.Errorf("IsPassword against %q = %v, %v", stored, got, err)
		}
	}
}

func TestASignInWaitsForItsTurnAndNoLongerThanItsContext(t *testing.T) {
	for range cap(hashing) {
		hashing <- struct{}{}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := IsPassword(ctx, "password", "")
	if appliance.CodeOf(err) != appliance.Unavailable || !errors.Is(err, context.Canceled) {
		t.Errorf("with every place taken: %v, want UNAVAILABLE because of the context", err)
	}
	for range cap(hashing) {
		<-hashing
	}
	if _, err := IsPassword(context.Background(), "password", ""); err != nil {
		t.Errorf("with places free again: %v", err)
	}
}
