// SPDX-License-Identifier: Apache-2.0

//go:build linux

package netlab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Host is one network namespace: a computer, as far as packets can tell.
type Host struct {
	// Name is what its servers answer with. It need not be unique.
	Name string

	lab  *Lab
	ns   netns.NsHandle  // an open file: keeps the namespace, and is the way in
	nl   *netlink.Handle // a socket inside
	done chan struct{}   // closed when the anchor has left

	mu     sync.Mutex
	addrs  []netip.Addr
	calls  chan func() // to the anchor
	closed bool
}

// hostSysctls make a new host behave the same on every machine and at once: what a namespace inherits
// differs between distributions, and duplicate address detection keeps an IPv6 address unusable for a second.
var hostSysctls = [][2]string{
	{"net.ipv4.ip_forward", "0"},
	{"net.ipv6.conf.all.forwarding", "0"},
	{"net.ipv4.conf.all.rp_filter", "0"},
	{"net.ipv4.conf.default.rp_filter", "0"},
	{"net.ipv6.conf.all.disable_ipv6", "0"},
	{"net.ipv6.conf.default.disable_ipv6", "0"},
	{"net.ipv6.conf.all.accept_dad", "0"},
	{"net.ipv6.conf.default.accept_dad", "0"},
	{"net.ipv6.conf.default.accept_ra", "0"},
	{"net.ipv6.conf.default.router_solicitations", "0"},
}

// Host adds a host with nothing but a loopback interface. It never returns nil: after an error (see
// [Lab.Err]) it returns a host in which nothing works.
func (l *Lab) Host(name string) *Host {
	h := &Host{Name: name, lab: l, ns: netns.None()}
	l.build("host "+name, func() error {
		if err := h.open(); err != nil {
			return err
		}
		l.mu.Lock()
		l.hosts = append(l.hosts, h)
		l.mu.Unlock()
		return h.setup()
	})
	return h
}

// Router adds a host that forwards packets of both families.
func (l *Lab) Router(name string) *Host {
	h := l.Host(name)
	h.Sysctl("net.ipv4.ip_forward", "1")
	h.Sysctl("net.ipv6.conf.all.forwarding", "1")
	return h
}

// open makes the namespace and starts the anchor.
func (h *Host) open() error {
	calls, done, made := make(chan func()), make(chan struct{}), make(chan error)
	go anchor(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("making a network namespace: %w (root or a user namespace is needed)", err)
		}
		fd, err := openThreadNS()
		h.ns = fd
		return err
	}, calls, made, done)
	if err := <-made; err != nil {
		<-done
		return err
	}
	h.calls, h.done = calls, done

	nl, err := netlink.NewHandleAt(h.ns, unix.NETLINK_ROUTE)
	if err != nil {
		h.close()
		return fmt.Errorf("netlink: %w", err)
	}
	h.nl = nl
	return nil
}

func (h *Host) setup() error {
	lo, err := h.nl.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := h.nl.LinkSetUp(lo); err != nil {
		return err
	}
	return h.Do(func() error {
		for _, kv := range hostSysctls {
			if err := writeSysctl(kv[0], kv[1]); err != nil {
				return err
			}
		}
		return nil
	})
}

// anchor owns one thread, which lives in the host's namespace from enter on and dies with it: the
// thread's end is what tells the kernel to kill the programs started on it (their parent-death signal is
// bound to the thread that forked them, so a thread from Go's pool would not do). The calls it makes are short.
func anchor(enter func() error, calls <-chan func(), made chan<- error, done chan<- struct{}) {
	runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
	if unix.Gettid() == unix.Getpid() {
		// The main thread never ends, and would show /proc/self as being in the namespace. Stay on it
		// until the work has found another thread.
		moved := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(moved)
			anchor(enter, calls, made, done)
		}()
		<-moved
		runtime.UnlockOSThread()
		return
	}
	defer close(done)
	err := enter()
	made <- err
	if err != nil {
		return
	}
	for call := range calls {
		call()
	}
}

// onAnchor runs fn on the host's own thread.
func (h *Host) onAnchor(fn func() error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.usable(); err != nil {
		return err
	}
	res := make(chan error, 1)
	h.calls <- func() { res <- fn() }
	return <-res
}

// usable reports why the host cannot be used; h.mu is held.
func (h *Host) usable() error {
	if h.closed {
		return ErrClosed
	}
	if h.calls == nil {
		if err := h.lab.Err(); err != nil {
			return err
		}
		return fmt.Errorf("netlab: host %s was not made", h.Name)
	}
	return nil
}

func (h *Host) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.calls == nil {
		return
	}
	h.closed = true
	close(h.calls)
	<-h.done
	if h.nl != nil {
		h.nl.Close()
	}
	_ = h.ns.Close()
}

// Do runs fn inside the host, on the calling goroutine, and returns its error. What fn does itself happens in the host:
// sockets it opens stay there for good (and may be used anywhere afterwards), files under
// /proc/sys/net are the host's, programs it starts run there (but use [Host.Command] for those). What
// other goroutines do does not, also when fn starts them: so nothing that works in the background may
// be set up by fn, other than with sockets that fn opened. Do calls may be nested and run in parallel.
func (h *Host) Do(fn func() error) error {
	h.mu.Lock()
	err := h.usable()
	ns := h.ns
	h.mu.Unlock()
	if err != nil {
		return err
	}

	runtime.LockOSThread()
	home, err := openThreadNS()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer func() {
		if err := netns.Set(home); err != nil {
			// The goroutine would go on in the wrong network without knowing.
			panic(fmt.Sprintf("netlab: cannot leave host %s: %v", h.Name, err))
		}
		_ = home.Close()
		runtime.UnlockOSThread()
	}()
	if err := netns.Set(ns); err != nil {
		return fmt.Errorf("netlab: entering host %s: %w", h.Name, err)
	}
	return fn()
}

// Sysctl sets a network setting of the host, such as "net.ipv4.ip_forward".
func (h *Host) Sysctl(key, value string) {
	h.lab.build("host "+h.Name, func() error {
		return h.Do(func() error { return writeSysctl(key, value) })
	})
}

// Path is a file that is the host's namespace as long as the lab lives, for nsenter --net=PATH and the like, in any process.
func (h *Host) Path() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(h.ns))
}

// Netlink is a handle that acts inside the host, for what this package has no method for. It must not be closed.
func (h *Host) Netlink() *netlink.Handle { return h.nl }

// Addrs are the addresses that Link gave the host, in order, without link-local ones.
func (h *Host) Addrs() []netip.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]netip.Addr(nil), h.addrs...)
}

// Addr is the host's first address of a family; the zero Addr if it has none.
func (h *Host) Addr(v6 bool) netip.Addr {
	for _, a := range h.Addrs() {
		if a.Is6() == v6 {
			return a
		}
	}
	return netip.Addr{}
}

// openThreadNS opens the namespace of the calling thread, which must be locked.
func openThreadNS() (netns.NsHandle, error) {
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return netns.None(), fmt.Errorf("netlab: opening the thread's network namespace: %w", err)
	}
	return netns.NsHandle(fd), nil
}

// writeSysctl sets a setting of the calling thread's namespace. Only network settings have one value a namespace.
func writeSysctl(key, value string) error {
	if !strings.HasPrefix(key, "net.") {
		return fmt.Errorf("sysctl %s is not a network setting: it would change the whole machine", key)
	}
	path := filepath.Join("/proc/sys", filepath.FromSlash(strings.ReplaceAll(key, ".", "/")))
	// No O_CREATE, so that a wrong name is an error that names it.
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("sysctl %s=%s: %w", key, value, err)
	}
	_, err = f.WriteString(value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("sysctl %s=%s: %w", key, value, err)
	}
	return nil
}
