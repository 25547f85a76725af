package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestABackupMadeUnderWritesIsOneCommitsState(t *testing.T) {
	s := openTest(t, Options{migrations: embedded})
	pair := func(i int) func(*Tx) error { // a write of two rows, which a torn copy would part
		return func(tx *Tx) error {
			for _, k := range []string{"a", "b"} {
				if err := tx.SetMeta(fmt.Sprint(k, i), strings.Repeat("x", 500)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	for i := range 200 {
		if err := s.Write(t.Context(), pair(i)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 200; ctx.Err() == nil; i++ {
			if err := s.Write(t.Context(), pair(i)); err != nil {
				t.Error(err)
			}
		}
	})
	dest := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(dest, []byte("an older backup"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Backup(t.Context(), dest); err != nil {
		t.Fatal(err)
	}
	stop()
	wg.Wait()
	if err := Verify(t.Context(), dest); err != nil {
		t.Error(err)
	}
	if err := Verify(t.Context(), s.Path()); err != nil {
		t.Errorf("the state in use: %v", err)
	}
	if exists(dest + ".part") {
		t.Error("the unfinished copy is still there")
	}
	restored := openTest(t, Options{Path: dest, migrations: embedded})
	err := restored.Read(t.Context(), func(tx *Tx) error {
		var all, torn int
		if err := tx.QueryRow(`SELECT count(*), count(*) FILTER (WHERE NOT EXISTS (
			SELECT 1 FROM meta o WHERE o.key = iif(m.key LIKE 'a%', 'b', 'a') || substr(m.key, 2))) FROM meta m`).Scan(&all, &torn); err != nil {
			return err
		}
		if all < 400 || torn != 0 {
			return fmt.Errorf("%d rows, %d without their other half", all, torn)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestVerifyFindsEveryCutAndEveryTornPage(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, Options{migrations: embedded})
	for i := range 40 {
		if err := s.Write(t.Context(), func(tx *Tx) error { return tx.SetMeta(fmt.Sprint(i), strings.Repeat("v", 500)) }); err != nil {
			t.Fatal(err)
		}
	}
	good := filepath.Join(dir, "good.db")
	if err := s.Backup(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(dir, "bad.db")
	check := func(what string, spoilt []byte) {
		if err := os.WriteFile(bad, spoilt, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Verify(t.Context(), bad); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v", what, err)
		}
	}
	const page = 4096
	for at := page; at < len(b); at += page {
		check(fmt.Sprint("cut at page ", at/page), b[:at])
		torn := append([]byte(nil), b...)
		clear(torn[at : at+page])
		check(fmt.Sprint("zeros in page ", at/page), torn)
	}
	check("nothing", nil)
	check("cut in a page", b[:len(b)-100])
	if err := Verify(t.Context(), filepath.Join(dir, "none.db")); !os.IsNotExist(err) {
		t.Errorf("no file: %v", err)
	}
	if err := Verify(t.Context(), good); err != nil {
		t.Error(err)
	}
}

func TestABackupThatFailsLeavesTheOlderOne(t *testing.T) {
	s := openTest(t, Options{migrations: embedded})
	dir := t.TempDir()
	dest := filepath.Join(dir, "copy.db")
	if err := s.Backup(t.Context(), dest); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(dest)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Backup(ctx, dest); err == nil {
		t.Error("a backup with a ctx that is over was made")
	}
	if err := backup(t.Context(), s.path, dest, 0); err == nil { // as if it were of a newer version, so that verifying fails
		t.Error("a backup that cannot be verified was put into place")
	}
	after, err := os.ReadFile(dest)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(len(before), len(after)); diff != "" || string(before) != string(after) {
		t.Error("the older backup was changed")
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "*")); len(names) != 1 {
		t.Errorf("left behind: %v", names)
	}
	if err := s.Backup(t.Context(), filepath.Join(dir, "no", "copy.db")); err == nil {
		t.Error("a folder that is not there was taken")
	}
}
