// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/kpng/test/bench/report"
	"sigs.k8s.io/kpng/test/bench/usage"
)

// few are the Services that kpng serves beside the unrelated ones.
const few = "few"

// idleTime is how long an idle kpng is watched.
const idleTime = 5 * time.Second

// unrelatedScenario measures a kpng that serves three Services, before, while and after many Services that are none
// of its business are made, and while these change.
func (b *bench) unrelatedScenario(ctx context.Context) error {
	if err := b.withAPI(ctx); err != nil {
		return err
	}
	labels := map[string]string{"service.kubernetes.io/service-proxy-name": few}
	if err := b.api.load(ctx, newWorld(3, b.endpoints), few, labels); err != nil {
		return err
	}
	source := []string{"kube", "--kubeconfig=" + b.api.Kubeconfig, "--service-proxy-name=" + few}
	k, err := b.startKpng(ctx, "unrelated", source...)
	if err != nil {
		return err
	}
	defer func() { k.Stop(limit) }()
	alone, err := observe(ctx, k, idle)
	if err != nil {
		return err
	}
	many := newWorld(b.unrelated, b.endpoints)
	start := time.Now()
	loading, err := observe(ctx, k, func() error { return b.api.load(ctx, many, "unrelated", nil) })
	if err != nil {
		return err
	}
	took := time.Since(start)
	changing, err := observe(ctx, k, func() error { return b.changeUnrelated(ctx, many) })
	if err != nil {
		return err
	}
	k.Stop(limit)
	if k, err = b.startKpng(ctx, "unrelated", source...); err != nil {
		return err
	}
	anew, err := observe(ctx, k, idle)
	if err != nil {
		return err
	}
	b.Heading("%d unrelated Services and %d unrelated endpoints beside 3 served Services", b.services+b.unrelated, (b.services+b.unrelated)*b.endpoints)
	b.Text("%d of them bear another proxy's label and are there from the start; %d without a label were made within %v.\n",
		b.services, b.unrelated, took.Round(time.Second))
	b.Header("kpng", "CPU", "resident")
	b.Row("idle, before the Services without a label", alone.percent(), report.MB(alone.resident))
	b.Row("while they were made", loading.percent(), report.MB(loading.resident))
	b.Row("while 100 of them changed each second", changing.percent(), report.MB(changing.resident))
	b.Row("started anew beside all of them, idle", anew.percent(), report.MB(anew.resident))
	more := max(loading.resident, changing.resident, anew.resident) - alone.resident
	b.Goal(more < 5e6, fmt.Sprintf("%d unrelated Services: memory added", b.services+b.unrelated), "5 MB", report.MB(max(0, more)))
	busy := max(loading.share, changing.share) - alone.share
	b.Goal(busy < 0.01, fmt.Sprintf("%d unrelated Services being made and changed: CPU added", b.services+b.unrelated), "1 %", fmt.Sprintf("%.2f %%", 100*max(0, busy)))
	return nil
}

func idle() error { time.Sleep(idleTime); return nil }

func (b *bench) changeUnrelated(ctx context.Context, w *world) error {
	stop := churn(ctx, 100, 4, func(ctx context.Context, worker int) error {
		i := int(time.Now().UnixNano()/1000) % (w.services / 4)
		s, _ := w.toggle(i*4+worker, i)
		return b.api.put(ctx, w.sliceObject(s, "unrelated", nil))
	})
	time.Sleep(idleTime)
	_, err := stop()
	return err
}

// observation is what a process used while something was done.
type observation struct {
	share    float64 // of one processor
	resident int
}

func (o observation) percent() string { return fmt.Sprintf("%.2f %%", 100*o.share) }

func observe(ctx context.Context, k *kpng, do func() error) (o observation, err error) {
	if err := ctx.Err(); err != nil {
		return o, err
	}
	before, start := usage.CPU(k.Pid()), time.Now()
	err = do()
	o.share = (usage.CPU(k.Pid()) - before).Seconds() / time.Since(start).Seconds()
	o.resident, _ = usage.Resident(k.Pid())
	return o, err
}
