"""Who is told what locks do: counters, traces, exporters."""
