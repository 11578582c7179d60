"""What a finished run says.

    run = read_run("outputs/my-run")
    print(format_text(summarise(run)))
    write_report(run, Path("report.html"))

`runs` reads a run folder of either verifiers generation, `summary` counts it, `page` draws it as one page.
"""
